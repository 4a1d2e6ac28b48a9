terrace_test(eviction_policy LIBS terrace_eviction)
terrace_test(policy_models LIBS terrace_eviction)
terrace_test(policy_graph LIBS terrace_eviction)
terrace_test(replay LIBS terrace_replay)
