# Unit tests of libterrace; those at the end run against a small daemon inside the test.
add_library(client_fake STATIC client/fake.c client/fake_call.c client/fake_fd.c client/fake_gpu.c client/fake_run.c)
target_link_libraries(client_fake PUBLIC terrace_static PkgConfig::GRPC)
terrace_test(client_keys SOURCES client/value/keys.c LIBS terrace_static ONE_THREAD)
terrace_test(client_json SOURCES client/value/json.c LIBS terrace_static ONE_THREAD)
terrace_test(client_plan SOURCES client/value/plan.c LIBS terrace_static ONE_THREAD)
terrace_test(layout_message SOURCES proto/layout_message.c LIBS terrace_proto ONE_THREAD) # of both ends
terrace_test(client_packed SOURCES client/value/packed.c LIBS terrace_static ONE_THREAD)
terrace_test(client_wire SOURCES client/transport/decode.c LIBS terrace_static)
terrace_test(client_bounds SOURCES client/transport/limits.c LIBS terrace_static)
terrace_test(adaptive_poll SOURCES proto/adaptive_poll.c LIBS terrace_proto ONE_THREAD) # of both ends
terrace_test(client_local SOURCES client/transport/local_calls.c LIBS terrace_static)
terrace_test(client_tls SOURCES client/transport/tls.c LIBS terrace_static)
target_link_options(client_tls PRIVATE -Wl,--wrap=getaddrinfo,--wrap=freeaddrinfo) # a host with two addresses
terrace_test(client_calls SOURCES client/call/calls.c client/rig.c LIBS client_fake)
terrace_test(client_async SOURCES client/call/async.c client/rig.c LIBS client_fake)
terrace_test(client_hostile SOURCES client/hostile.c client/rig.c LIBS client_fake)
terrace_test(client_threads SOURCES client/threads.c client/rig.c LIBS client_fake)
terrace_test(client_pages SOURCES client/memory/pages.c client/rig.c LIBS client_fake)

# Leases on a GPU, which is the simulated device.
function(client_gpu_test name source)
  if(TARGET sim_plugin)
    terrace_test(${name} SOURCES ${source} client/gpu/rig.c sim/stream.c LIBS client_fake ${CMAKE_DL_LIBS})
    target_compile_definitions(${name} PRIVATE SIM_PLUGIN="$<TARGET_FILE:sim_plugin>")
    add_dependencies(${name} sim_plugin)
  endif()
endfunction()
client_gpu_test(client_gpu client/gpu/gpu.c)
client_gpu_test(client_gpu_ahead client/gpu/premap.c)
client_gpu_test(client_gpu_ends client/gpu/ends.c)
client_gpu_test(client_gpu_driver client/driver/driver_thread.c)

if(TARGET client_gpu_ends)
  target_link_options(client_gpu_ends PRIVATE -Wl,--wrap=client_progress_page_open) # which it has wait
endif()
if(TARGET client_gpu_driver)
  target_link_options(client_gpu_driver PRIVATE -Wl,--wrap=client_after_watch,--wrap=client_places_init) # which it has fail, and wait
endif()

# A plugin without a GPU, in the place of libterrace_cuda.so.
add_library(client_cuda_plugin MODULE client/driver/fake_plugin.c)
terrace_test(client_cuda SOURCES client/driver/plugin.c LIBS terrace_static ${CMAKE_DL_LIBS})
target_compile_definitions(client_cuda PRIVATE CUDA_PLUGIN="$<TARGET_FILE:client_cuda_plugin>"
                           NOT_A_PLUGIN="$<TARGET_FILE:client_not_a_plugin>")
add_library(client_not_a_plugin MODULE client/driver/not_a_plugin.c)
add_dependencies(client_cuda client_cuda_plugin client_not_a_plugin)
