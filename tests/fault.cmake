# Engines and daemons that die.
if(NOT TARGET terraced)
  return()
endif()

add_executable(storm fault/storm.c fault/storm_blocks.c)
target_link_libraries(storm PRIVATE terrace_static)

if(TERRACE_SANITIZE)
  set(KILL_ROUNDS 40)
elseif(TESTS_SMALL)
  set(KILL_ROUNDS 300)
else()
  set(KILL_ROUNDS 1000)
endif()
add_test(NAME kill_storm COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_kill.py
         $<TARGET_FILE:terraced> $<TARGET_FILE:storm> ${KILL_ROUNDS})
set_tests_properties(kill_storm PROPERTIES TIMEOUT 420 RUN_SERIAL TRUE) # it has bounds of a second

# Daemons die while slabs go from one block size to another.
foreach(kills 6 100)
  add_test(NAME kill_sizes_${kills} COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_kill_sizes.py
           $<TARGET_FILE:terraced> ${kills})
  set_tests_properties(kill_sizes_${kills} PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}")
endforeach()
set_tests_properties(kill_sizes_6 PROPERTIES TIMEOUT 180)
set_tests_properties(kill_sizes_100 PROPERTIES TIMEOUT 1200 LABELS long)

# The same on a GPU, which is the simulated device.
if(TARGET sim_plugin)
  add_executable(storm_gpu fault/storm_gpu.c fault/storm_blocks.c sim/stream.c)
  target_link_libraries(storm_gpu PRIVATE terrace_static Threads::Threads)
  target_compile_definitions(storm_gpu PRIVATE SIM_PLUGIN="$<TARGET_FILE:sim_plugin>")
  add_dependencies(storm_gpu sim_plugin)
  add_executable(gpu_engine fault/gpu_engine.c sim/stream.c)
  target_link_libraries(gpu_engine PRIVATE terrace_static Threads::Threads)
  target_compile_definitions(gpu_engine PRIVATE SIM_PLUGIN="$<TARGET_FILE:sim_plugin>")
  add_dependencies(gpu_engine sim_plugin)
  add_test(NAME gpu_faults COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_gpu.py
           $<TARGET_FILE:terraced> $<TARGET_FILE:gpu_engine> ${SIM_DEVICE_FOLDER} $<TARGET_FILE:terracectl>)
  # A copy is made to take four seconds, and what comes before its end is to be seen before that.
  set_tests_properties(gpu_faults PROPERTIES TIMEOUT 120 RUN_SERIAL TRUE)
  add_test(NAME stop_faults COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_stop.py
           $<TARGET_FILE:terraced> $<TARGET_FILE:gpu_engine> ${SIM_DEVICE_FOLDER})
  set_tests_properties(stop_faults PROPERTIES TIMEOUT 180)
  foreach(kills 20 200)
    add_test(NAME kill_storm_gpu_${kills} COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_kill_gpu.py
             $<TARGET_FILE:terraced> $<TARGET_FILE:storm_gpu> ${SIM_DEVICE_FOLDER} ${kills})
  endforeach()
  set_tests_properties(kill_storm_gpu_20 PROPERTIES TIMEOUT 180)
  set_tests_properties(kill_storm_gpu_200 PROPERTIES TIMEOUT 900 LABELS long)
endif()

# Mixed load over VRAM, host memory and a disk. No wait may take a second, with sanitizers neither: so nothing else runs beside it.
if(TARGET sim_plugin AND TARGET tinylm_core)
  add_executable(mixed_engine fault/mixed_engine.c fault/mixed_work.c fault/mixed_tally.c)
  target_link_libraries(mixed_engine PRIVATE tinylm_core terrace_static Threads::Threads)
  add_dependencies(mixed_engine sim_plugin sim_runtime terracectl)
  if(TERRACE_SANITIZE)
    set(MIXED_LOAD --seconds 6 --slower 20)
  elseif(TESTS_SMALL)
    set(MIXED_LOAD --seconds 12 --slower 10)
  else()
    set(MIXED_LOAD --seconds 20)
  endif()
  foreach(name "mixed_load" "mixed_load_long")
    add_test(NAME ${name} COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_mixed.py $<TARGET_FILE:terraced>
             $<TARGET_FILE:terracectl> $<TARGET_FILE:mixed_engine> --libraries ${SIM_DEVICE_FOLDER} ${MIXED_LOAD})
    set(MIXED_LOAD --long)
  endforeach()
  add_test(NAME mixed_load_two_gpus COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_mixed.py $<TARGET_FILE:terraced>
           $<TARGET_FILE:terracectl> $<TARGET_FILE:mixed_engine> --libraries ${SIM_DEVICE_FOLDER} --gpus 2 --seconds 6 --slower 20)
  set_tests_properties(mixed_load_two_gpus PROPERTIES TIMEOUT 120 RUN_SERIAL TRUE)
  foreach(kills 4 60)
    add_test(NAME kill_daemon_${kills} COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_kill_daemon.py
             $<TARGET_FILE:terraced> $<TARGET_FILE:terracectl> $<TARGET_FILE:mixed_engine> --libraries ${SIM_DEVICE_FOLDER} --kills ${kills})
  endforeach()
  # SIGKILL tears a write into a file in memory, which the kernel makes page by page; what Verify is not to find.
  set_tests_properties(kill_daemon_4 kill_daemon_60 PROPERTIES RUN_SERIAL TRUE ENVIRONMENT_MODIFICATION "${ON_DISK}")
  set_tests_properties(kill_daemon_4 PROPERTIES TIMEOUT 180)
  set_tests_properties(kill_daemon_60 PROPERTIES TIMEOUT 900 LABELS long)
  add_executable(slow_writer fault/slow_writer.c fault/mixed_work.c gpu/driver_kernel.c)
  target_link_libraries(slow_writer PRIVATE tinylm_core terrace_static Threads::Threads ${CMAKE_DL_LIBS})
  if(TERRACE_SANITIZE)
    set(WRITER_KILLS 6)
  else()
    set(WRITER_KILLS 10)
  endif()
  add_test(NAME kill_writer COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_writer.py $<TARGET_FILE:terraced>
           $<TARGET_FILE:terracectl> $<TARGET_FILE:mixed_engine> $<TARGET_FILE:slow_writer> --libraries ${SIM_DEVICE_FOLDER} --kills ${WRITER_KILLS})
  if(TARGET terrace AND NOT TERRACE_SANITIZE) # its engines are Python's
    add_test(NAME gpu_lost COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_gpu_lost.py $<TARGET_FILE:terraced>
             $<TARGET_FILE:terracectl> $<TARGET_FILE:mixed_engine> $<TARGET_FILE:gpu_trap> --libraries ${SIM_DEVICE_FOLDER} --gpu-mib 64 --host-mib 256)
    set_tests_properties(gpu_lost PROPERTIES TIMEOUT 120 ENVIRONMENT LIBTERRACE=$<TARGET_FILE:terrace>)
  endif()
  set_tests_properties(kill_writer PROPERTIES TIMEOUT 120 RUN_SERIAL TRUE)
  set_tests_properties(mixed_load PROPERTIES TIMEOUT 180 RUN_SERIAL TRUE) # it has bounds of a second
  set_tests_properties(mixed_load_long PROPERTIES TIMEOUT 900 LABELS long RUN_SERIAL TRUE)
endif()

# Mixed load at three times the memory; an hour with the long tests.
if(TERRACE_SANITIZE)
  set(ENDURANCE_SECONDS 12)
  set(ENDURANCE_WITHOUT without-memory)
elseif(TESTS_SMALL)
  set(ENDURANCE_SECONDS 60)
else()
  set(ENDURANCE_SECONDS 150)
endif()
add_test(NAME endurance COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_endurance.py
         $<TARGET_FILE:terraced> $<TARGET_FILE:storm> ${ENDURANCE_SECONDS} ${ENDURANCE_WITHOUT})
set_tests_properties(endurance PROPERTIES TIMEOUT 600 ENVIRONMENT_MODIFICATION "${ON_DISK}")
if(NOT TERRACE_SANITIZE) # tests/run.sh starts it in the background
  set_tests_properties(endurance PROPERTIES LABELS beside)
endif()
add_test(NAME endurance_hour COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_endurance.py
         $<TARGET_FILE:terraced> $<TARGET_FILE:storm> 3600)
set_tests_properties(endurance_hour PROPERTIES TIMEOUT 4000 LABELS long ENVIRONMENT_MODIFICATION "${ON_DISK}")

# Caches that are killed at named points (store/crash_point.h): the files that have points are built once more, with the points in
# them, and stand before the libraries' own. With sanitizers they have them anyway.
if(TERRACE_SANITIZE)
  add_library(terrace_crash ALIAS terrace_cache)
else()
  get_property(layers GLOBAL PROPERTY TERRACE_LAYERS)
  set(crash_files)
  foreach(layer ${layers})
    get_target_property(sources ${layer} SOURCES)
    get_target_property(folder ${layer} SOURCE_DIR)
    foreach(source ${sources})
      set(file ${folder}/${source})
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file}) # it may come to have one
      file(STRINGS ${file} points REGEX "crash_point\\.h" LIMIT_COUNT 1)
      if(points)
        list(APPEND crash_files ${file})
      endif()
    endforeach()
  endforeach()
  add_library(terrace_crash OBJECT ${crash_files})
  target_compile_definitions(terrace_crash PUBLIC TERRACE_CRASH_POINTS)
  target_link_libraries(terrace_crash PRIVATE PkgConfig::ISAL PkgConfig::XXHASH PkgConfig::URING PkgConfig::LMDB PUBLIC terrace_cache)
endif()

add_executable(crash_core fault/crash_core.c fault/crash_life.c fault/crash_shadow.c daemon/disk/power_log.c)
target_link_libraries(crash_core PRIVATE terrace_crash m)
# What was written stays when a process is killed, on a disk or not: most are killed where a sync costs nothing.
if(TERRACE_SANITIZE MATCHES thread)
  set(CRASH_KILLS 30)
elseif(TERRACE_SANITIZE)
  set(CRASH_KILLS 40)
else()
  if(TESTS_SMALL)
    set(CRASH_KILLS 100)
  else()
    set(CRASH_KILLS 160)
  endif()
  add_test(NAME crash_core_disk COMMAND crash_core 40 3)
  set_tests_properties(crash_core_disk PROPERTIES TIMEOUT 420 ENVIRONMENT_MODIFICATION "${ON_DISK}")
endif()
add_test(NAME crash_core COMMAND crash_core ${CRASH_KILLS})
add_test(NAME crash_core_1000 COMMAND crash_core 1000 2)
add_test(NAME crash_units COMMAND crash_core 60 4 units)
add_test(NAME crash_units_300 COMMAND crash_core 300 5 units)
set_tests_properties(crash_units PROPERTIES TIMEOUT 420)
set_tests_properties(crash_units_300 PROPERTIES TIMEOUT 1200 LABELS long ENVIRONMENT_MODIFICATION "${ON_DISK}")
set_tests_properties(crash_core PROPERTIES TIMEOUT 420)
set_tests_properties(crash_core_1000 PROPERTIES TIMEOUT 1800 LABELS long ENVIRONMENT_MODIFICATION "${ON_DISK}")

# The same of a whole daemon.
if(TERRACE_SANITIZE)
  add_executable(terraced_crash ALIAS terraced)
  set(CRASH_DAEMON_KILLS 20)
else()
  add_executable(terraced_crash ${CMAKE_SOURCE_DIR}/daemon/main.c)
  target_compile_definitions(terraced_crash PRIVATE TERRACE_VERSION="${PROJECT_VERSION}")
  target_link_libraries(terraced_crash PRIVATE terrace_crash terrace_daemon PkgConfig::SYSTEMD)
  set(CRASH_DAEMON_KILLS 40)
endif()
foreach(kills ${CRASH_DAEMON_KILLS} 500)
  add_test(NAME crash_daemon_${kills} COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/fault/test_crash.py
           $<TARGET_FILE:terraced_crash> $<TARGET_FILE:storm> $<TARGET_FILE:crash_core> ${kills})
  set_tests_properties(crash_daemon_${kills} PROPERTIES TIMEOUT 420 ENVIRONMENT_MODIFICATION "${ON_DISK}")
endforeach()
set_tests_properties(crash_daemon_500 PROPERTIES TIMEOUT 1800 LABELS long)
