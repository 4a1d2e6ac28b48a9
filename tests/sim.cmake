# A GPU that is none (sim/device.h): a plugin and a runtime by the names that are loaded, in a folder of their own, for programs that run
# with LD_LIBRARY_PATH=${SIM_DEVICE_FOLDER}; and the same device as a library, for tests that link it.
set(SIM_DEVICE_FOLDER ${CMAKE_CURRENT_BINARY_DIR}/sim_device)

add_library(sim_device STATIC sim/device.c sim/copy.c sim/sums.c sim/wait.c sim/stream.c)
target_link_libraries(sim_device PUBLIC Threads::Threads)

add_library(sim_plugin MODULE sim/kernels.c sim/device.c sim/copy.c sim/sums.c sim/wait.c sim/stream.c)
target_link_libraries(sim_plugin PRIVATE terrace_kernels Threads::Threads)
set_target_properties(sim_plugin PROPERTIES PREFIX "" OUTPUT_NAME libterrace_cuda SUFFIX .so.0
                      LIBRARY_OUTPUT_DIRECTORY ${SIM_DEVICE_FOLDER})
add_library(sim_runtime MODULE sim/runtime.c sim/stream.c)
target_link_libraries(sim_runtime PRIVATE Threads::Threads)
set_target_properties(sim_runtime PROPERTIES PREFIX "" OUTPUT_NAME libcudart SUFFIX .so.13
                      LIBRARY_OUTPUT_DIRECTORY ${SIM_DEVICE_FOLDER})

# RDMA devices that are none (sim/verbs.h).
add_library(sim_verbs STATIC sim/verbs.c)
target_link_libraries(sim_verbs PUBLIC Threads::Threads)

# The same program as on a GPU (gpu/run.sh), over the simulated device.
add_executable(gpu_device gpu/device.c gpu/device_rows.c gpu/device_sums.c gpu/device_rig.c)
target_link_libraries(gpu_device PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
add_dependencies(gpu_device sim_plugin sim_runtime)
add_test(NAME gpu_device_sim COMMAND gpu_device)
set_tests_properties(gpu_device_sim PROPERTIES TIMEOUT 120 ENVIRONMENT LD_LIBRARY_PATH=${SIM_DEVICE_FOLDER})
add_test(NAME gpu_device_sim_lost COMMAND gpu_device lost)
set_tests_properties(gpu_device_sim_lost PROPERTIES TIMEOUT 120
                     ENVIRONMENT "LD_LIBRARY_PATH=${SIM_DEVICE_FOLDER};SIM_GPU_LOST_AFTER=3")
# A loss as a driver tells it, and what it is made with in a daemon (gpu/run.sh); here the simulated device's own.
add_executable(device_lost gpu/device_lost.c gpu/device_rig.c gpu/trap.c gpu/driver_kernel.c)
target_link_libraries(device_lost PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
add_dependencies(device_lost sim_plugin sim_runtime)
add_test(NAME device_lost_sim COMMAND device_lost simulated)
set_tests_properties(device_lost_sim PROPERTIES TIMEOUT 120 ENVIRONMENT LD_LIBRARY_PATH=${SIM_DEVICE_FOLDER})
if(TERRACE_SANITIZE MATCHES thread) # the device's threads are looked at in gpu_device_sim, and in gpu_device_sim_lost when it is lost
  set_tests_properties(device_lost_sim PROPERTIES LABELS long)
endif()
add_library(gpu_trap MODULE gpu/trap_library.c gpu/trap.c gpu/driver_kernel.c)
target_link_libraries(gpu_trap PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(gpu_trap PROPERTIES PREFIX "")
add_executable(two_gpus gpu/two_gpus.c gpu/device_rig.c)
target_link_libraries(two_gpus PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
add_dependencies(two_gpus sim_plugin sim_runtime)
add_test(NAME two_gpus_sim COMMAND two_gpus --quick)
set_tests_properties(two_gpus_sim PROPERTIES TIMEOUT 60 ENVIRONMENT "LD_LIBRARY_PATH=${SIM_DEVICE_FOLDER};SIM_GPU_DEVICES=2")
terrace_test(sim_faults SOURCES sim/faults.c LIBS sim_device)
# A cluster's directory in virtual time. The long form has 1,000 nodes: tests/bench/results/directory.md. It starts no thread.
if(NOT TERRACE_SANITIZE MATCHES thread)
  add_executable(directory_sim sim/directory.c)
  target_link_libraries(directory_sim PRIVATE terrace_directory terrace_eviction)
  if(TERRACE_SANITIZE)
    set(nodes --nodes=20)
  endif()
  add_test(NAME directory_sim COMMAND directory_sim ${nodes})
  set_tests_properties(directory_sim PROPERTIES TIMEOUT 120)
endif()
