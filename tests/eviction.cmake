terrace_test(eviction_policy LIBS terrace_eviction)
terrace_test(policy_models LIBS terrace_eviction)
terrace_test(policy_graph LIBS terrace_eviction)
terrace_test(replay LIBS terrace_replay)
terrace_test(graph_edges LIBS terrace_eviction)

# What the graph costs a node and an access; `policy_cost 10000000` measures a large one.
add_executable(policy_cost policy_cost.c)
target_link_libraries(policy_cost PRIVATE terrace_eviction)
add_test(NAME policy_cost COMMAND policy_cost)
set_tests_properties(policy_graph PROPERTIES TIMEOUT 400) # minutes under sanitizers
