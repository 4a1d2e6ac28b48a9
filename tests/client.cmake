# Unit tests of libterrace; those at the end run against a small daemon inside the test.
add_library(client_fake STATIC client_fake.c client_fake_call.c client_fake_fd.c client_fake_gpu.c client_fake_run.c)
target_link_libraries(client_fake PUBLIC terrace_static PkgConfig::GRPC)
terrace_test(client_keys LIBS terrace_static ONE_THREAD)
terrace_test(layout_message LIBS terrace_proto ONE_THREAD) # of both ends
terrace_test(client_packed LIBS terrace_static ONE_THREAD)
terrace_test(client_wire LIBS terrace_static)
terrace_test(client_bounds LIBS terrace_static)
terrace_test(adaptive_poll LIBS terrace_proto ONE_THREAD) # of both ends
terrace_test(client_near LIBS terrace_static)
foreach(name calls async hostile threads)
  terrace_test(client_${name} SOURCES client_${name}.c client_rig.c LIBS client_fake)
endforeach()

# Leases on a GPU, which is the simulated device.
foreach(name gpu gpu_ahead gpu_ends gpu_driver)
  if(TARGET sim_plugin AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/client_${name}.c)
    terrace_test(client_${name} SOURCES client_${name}.c client_gpu_rig.c sim_stream.c LIBS client_fake ${CMAKE_DL_LIBS})
    target_compile_definitions(client_${name} PRIVATE SIM_PLUGIN="$<TARGET_FILE:sim_plugin>")
    add_dependencies(client_${name} sim_plugin)
  endif()
endforeach()

if(TARGET client_gpu_ends)
  target_link_options(client_gpu_ends PRIVATE -Wl,--wrap=client_board_open) # which it has wait
endif()
if(TARGET client_gpu_driver)
  target_link_options(client_gpu_driver PRIVATE -Wl,--wrap=client_after_watch,--wrap=client_places_init) # which it has fail, and wait
endif()

# A plugin without a GPU, in the place of libterrace_cuda.so.
add_library(client_cuda_plugin MODULE client_cuda_plugin.c)
terrace_test(client_cuda LIBS terrace_static ${CMAKE_DL_LIBS})
target_compile_definitions(client_cuda PRIVATE CUDA_PLUGIN="$<TARGET_FILE:client_cuda_plugin>"
                           NOT_A_PLUGIN="$<TARGET_FILE:client_not_a_plugin>")
add_library(client_not_a_plugin MODULE client_not_a_plugin.c)
add_dependencies(client_cuda client_cuda_plugin client_not_a_plugin)
