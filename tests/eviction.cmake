terrace_test(eviction_policy SOURCES eviction/policy.c LIBS terrace_replay ONE_THREAD)
terrace_test(policy_models SOURCES eviction/models.c LIBS terrace_replay ONE_THREAD)
terrace_test(policy_graph SOURCES eviction/graph.c LIBS terrace_eviction TIMEOUT 400 ONE_THREAD) # minutes under sanitizers
terrace_test(departures SOURCES eviction/departures.c LIBS terrace_eviction ONE_THREAD)
terrace_test(policy_weigh SOURCES eviction/weigh.c LIBS terrace_eviction ONE_THREAD)
terrace_test(policy_lines SOURCES eviction/lines.c LIBS terrace_eviction ONE_THREAD)
terrace_test(policy_duel SOURCES eviction/duel.c LIBS terrace_replay TIMEOUT 400 ONE_THREAD)
terrace_test(policy_keep SOURCES eviction/graph_keep.c LIBS terrace_replay TIMEOUT 240 ONE_THREAD)
terrace_test(replay SOURCES eviction/replay.c LIBS terrace_replay ONE_THREAD)
add_test(NAME replay_unprinted COMMAND sh -c "$<TARGET_FILE:terrace-replay> --help >/dev/full") # is a failure
set_tests_properties(replay_unprinted PROPERTIES WILL_FAIL TRUE)
terrace_test(policy_properties SOURCES eviction/properties.c LIBS terrace_replay ONE_THREAD)
terrace_test(replay_nodes SOURCES eviction/replay_nodes.c LIBS terrace_replay ONE_THREAD)
terrace_test(replay_offline SOURCES eviction/replay_offline.c LIBS terrace_replay ONE_THREAD)
terrace_test(graph_edges SOURCES eviction/graph_edges.c LIBS terrace_eviction)

# What the graph costs a node and an access; `policy_cost 10000000` measures a large one.
if(NOT TERRACE_SANITIZE MATCHES thread)
  add_executable(policy_cost eviction/policy_cost.c)
  target_link_libraries(policy_cost PRIVATE terrace_eviction)
  add_test(NAME policy_cost COMMAND policy_cost)
  set_property(GLOBAL APPEND PROPERTY ONE_THREAD_TESTS $<TARGET_FILE:policy_cost>)
endif()
