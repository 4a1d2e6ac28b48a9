# End to end: real processes. The Python tests use the system's interpreter, whose packages deploy/packages.txt lists.
set(SYSTEM_PYTHON /usr/bin/python3)

if(NOT TARGET terraced)
  return()
endif()

function(terrace_python_test name script)
  add_test(NAME ${name} COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/${script} $<TARGET_FILE:terraced> ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 180)
endfunction()

terrace_python_test(e2e_grpcio test_grpcio.py)
terrace_python_test(e2e_limits test_limits.py)
terrace_python_test(e2e_limits_long test_limits.py --long) # it waits for a minute
set_tests_properties(e2e_limits_long PROPERTIES TIMEOUT 900 LABELS long)
terrace_python_test(e2e_scribble test_scribble.py)
set_tests_properties(e2e_scribble PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}")
terrace_python_test(e2e_shares test_shares.py)
terrace_python_test(e2e_old_data test_old_data.py)
terrace_python_test(e2e_tenants test_tenants.py)
set_tests_properties(e2e_tenants PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}") # by users who may not enter a TMPDIR of root's
terrace_python_test(e2e_tenants_long test_tenants.py --long Tenants.test_times_tell_nothing)
set_tests_properties(e2e_tenants_long PROPERTIES LABELS long)
if(TARGET terrace AND NOT TERRACE_SANITIZE)
  terrace_python_test(e2e_containers test_containers.py $<TARGET_FILE:terrace>)
  set_tests_properties(e2e_containers PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}") # as e2e_tenants
  terrace_python_test(e2e_network test_network.py $<TARGET_FILE:terrace>)
  terrace_python_test(e2e_storms test_storms.py $<TARGET_FILE:terrace>)
  terrace_python_test(e2e_storms_long test_storms.py $<TARGET_FILE:terrace> --long)
  set_tests_properties(e2e_storms e2e_storms_long PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}") # as e2e_tenants
  set_tests_properties(e2e_storms_long PROPERTIES TIMEOUT 900 LABELS long)
endif()
if(TARGET terracectl)
  if(NOT TERRACE_SANITIZE MATCHES thread)
    terrace_python_test(e2e_tls test_tls.py $<TARGET_FILE:terracectl> $<TARGET_FILE:terrace>)
    terrace_python_test(e2e_borrow test_borrow.py $<TARGET_FILE:terrace>)
    set_tests_properties(e2e_borrow PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}") # as e2e_tenants
  endif()
  if(TERRACE_SANITIZE MATCHES address) # a Python that loads the library needs the runtimes first, and frees little at its end
    foreach(runtime asan ubsan)
      execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=lib${runtime}.so OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
      list(APPEND runtimes ${path})
    endforeach()
    list(JOIN runtimes ":" runtimes)
    set_tests_properties(e2e_tls e2e_borrow PROPERTIES ENVIRONMENT "LD_PRELOAD=${runtimes};ASAN_OPTIONS=detect_leaks=0")
  endif()
  terrace_python_test(e2e_secrets test_secrets.py $<TARGET_FILE:terracectl> Secrets Peers)
  if(NOT TERRACE_SANITIZE)
    terrace_python_test(e2e_secrets_memory test_secrets.py $<TARGET_FILE:terracectl> Memory)
  endif()
  terrace_python_test(e2e_rights test_rights.py $<TARGET_FILE:terracectl>)
  set_tests_properties(e2e_rights PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}") # other users may not enter a TMPDIR of root's
  terrace_python_test(e2e_disk test_disk.py $<TARGET_FILE:terracectl>)
  terrace_python_test(e2e_degraded test_degraded.py $<TARGET_FILE:terracectl>)
  set_tests_properties(e2e_disk e2e_degraded PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}")
endif()
add_test(NAME etcd_proto COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/test_etcd_proto.py)
set_tests_properties(etcd_proto PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77)
if(TARGET terracectl)
  terrace_python_test(e2e_membership test_membership.py $<TARGET_FILE:terracectl>)
  terrace_python_test(e2e_membership_long test_membership.py $<TARGET_FILE:terracectl> Membership.test_storm --long)
  set_tests_properties(e2e_membership e2e_membership_long PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77)
  set_tests_properties(e2e_membership_long PROPERTIES TIMEOUT 1800 LABELS long)
  # Daemons in network namespaces, with an etcd.
  add_test(NAME peers COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/peers/run.sh)
  set_tests_properties(peers PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 ENVIRONMENT BUILD=${CMAKE_BINARY_DIR})
  if(NOT TERRACE_SANITIZE) # the library is loaded by Python
    foreach(part fetch spill upgrade)
      add_test(NAME peers_${part} COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/peers/run.sh --${part})
      set_tests_properties(peers_${part} PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 ENVIRONMENT BUILD=${CMAKE_BINARY_DIR})
    endforeach()
    add_library(wall_clock MODULE peers/wall_clock.c) # for some of these daemons to be run with
    target_link_libraries(wall_clock PRIVATE ${CMAKE_DL_LIBS})
    target_compile_options(wall_clock PRIVATE -fvisibility=default)
    add_test(NAME peers_storm COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/peers/run.sh --storm Storm)
    add_test(NAME peers_network COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/peers/run.sh --storm Network Clocks.test_what_one_has_another_leases
             Clocks.test_loans_end)
    add_test(NAME peers_storm_long COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/peers/run.sh --storm)
    set_tests_properties(peers_storm peers_network PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 ENVIRONMENT BUILD=${CMAKE_BINARY_DIR})
    set_tests_properties(peers_storm_long PROPERTIES TIMEOUT 1800 LABELS long SKIP_RETURN_CODE 77
                         ENVIRONMENT "BUILD=${CMAKE_BINARY_DIR};TERRACE_LONG=1")
    if(TARGET terrace_static AND TARGET terrace_replay)
      add_executable(trace_nodes peers/trace_nodes.c)
      target_link_libraries(trace_nodes PRIVATE terrace_static terrace_replay Threads::Threads)
      add_test(NAME peers_trace COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/peers/run.sh --trace)
      add_test(NAME peers_trace_long COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/peers/run.sh --trace --long)
      set_tests_properties(peers_trace peers_trace_long PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 ENVIRONMENT BUILD=${CMAKE_BINARY_DIR})
      set_tests_properties(peers_trace_long PROPERTIES TIMEOUT 3600 LABELS long)
    endif()
  endif()
endif()
if(TARGET terracectl AND NOT TERRACE_SANITIZE) # a guest with soft-RoCE
  add_test(NAME rdma_guest COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/rdma/run.sh)
  set_tests_properties(rdma_guest PROPERTIES TIMEOUT 1800 LABELS long SKIP_RETURN_CODE 77 ENVIRONMENT BUILD=${CMAKE_BINARY_DIR})
endif()
if(TARGET terracectl AND TARGET sim_plugin)
  terrace_python_test(e2e_metrics test_metrics.py $<TARGET_FILE:terracectl> ${SIM_DEVICE_FOLDER})
endif()
# As it is installed; of a build with sanitizers it wants more system calls than the daemon does.
if(NOT TERRACE_SANITIZE)
  terrace_python_test(e2e_service test_service.py ${CMAKE_COMMAND} ${CMAKE_BINARY_DIR})
  set_tests_properties(e2e_service PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}") # by a user who may not enter a TMPDIR of root's
endif()
if(TARGET installed AND NOT TERRACE_SANITIZE)
  terrace_python_test(e2e_install test_install.py ${CMAKE_COMMAND} ${CMAKE_BINARY_DIR})
endif()
if(TARGET terrace AND TARGET terracectl AND TARGET sim_plugin AND NOT TERRACE_SANITIZE)
  terrace_python_test(e2e_opaque test_opaque.py $<TARGET_FILE:terracectl> $<TARGET_FILE:terrace> ${SIM_DEVICE_FOLDER})
  set_tests_properties(e2e_opaque PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}")
endif()
if(TARGET chain AND TARGET terracectl AND NOT TERRACE_SANITIZE)
  terrace_python_test(e2e_cluster test_cluster.py ${CMAKE_BINARY_DIR})
  set_tests_properties(e2e_cluster PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
if(TARGET hello)
  terrace_python_test(e2e_hello test_hello.py $<TARGET_FILE:hello>)
endif()
if(TARGET hybrid)
  terrace_python_test(e2e_hybrid test_hybrid.py $<TARGET_FILE:hybrid>)
  set_tests_properties(e2e_hybrid PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}")
endif()

# A public trace through real daemons: a tenth of it, 20 times as fast; with the long tests all of it, 10 times as fast. It goes by the clock.
if(TARGET terrace_static AND TARGET terrace_replay)
  if(NOT TERRACE_SANITIZE)
    add_executable(trace_engine e2e/trace_engine.c)
    target_link_libraries(trace_engine PRIVATE terrace_static terrace_replay Threads::Threads)
    add_executable(trace_client e2e/trace_engine.c) # by the shared library: bench/hits.py runs it with that of any build
    target_link_libraries(trace_client PRIVATE terrace terrace_replay Threads::Threads)
    target_link_options(trace_client PRIVATE -Wl,--enable-new-dtags)
    terrace_python_test(e2e_trace test_trace.py $<TARGET_FILE:trace_engine>)
    terrace_python_test(e2e_trace_long test_trace.py $<TARGET_FILE:trace_engine> --long)
    set_tests_properties(e2e_trace_long PROPERTIES TIMEOUT 7200 LABELS long)
  endif()
endif()

# Engines over the Python binding, as below.
if(TARGET terrace AND NOT TERRACE_SANITIZE)
  terrace_python_test(e2e_layouts test_layouts.py $<TARGET_FILE:terrace>)
  terrace_python_test(e2e_layouts_long test_layouts.py $<TARGET_FILE:terrace> --long)
  if(TARGET terracectl)
    terrace_python_test(e2e_mla test_mla.py $<TARGET_FILE:terrace> $<TARGET_FILE:terracectl>)
    set_tests_properties(e2e_mla PROPERTIES ENVIRONMENT_MODIFICATION "${ON_DISK}")
  endif()
  set_tests_properties(e2e_layouts PROPERTIES TIMEOUT 600) # it fills memory some thirty times
  set_tests_properties(e2e_layouts_long PROPERTIES TIMEOUT 900 LABELS long)
endif()

if(TARGET terrace AND TARGET terracectl AND TARGET terrace-replay AND NOT TERRACE_SANITIZE)
  terrace_python_test(e2e_long_keys test_long_keys.py $<TARGET_FILE:terrace> $<TARGET_FILE:terracectl> $<TARGET_FILE:terrace-replay>)
endif()

# The Python binding: without sanitizers, which the interpreter does not come with.
if(TARGET terrace AND TARGET sim_plugin AND NOT TERRACE_SANITIZE)
  terrace_python_test(e2e_units test_units.py $<TARGET_FILE:terrace>)
  terrace_python_test(e2e_python_async test_python_async.py $<TARGET_FILE:terrace>)
  terrace_python_test(e2e_wheel test_wheel.py ${CMAKE_BINARY_DIR}) # it asks PyPI for tools, and packs for a minute
  set_tests_properties(e2e_wheel PROPERTIES TIMEOUT 900 LABELS long)
  # Types, as the package's pyproject.toml wants them checked; the tool is Debian's.
  add_test(NAME python_types COMMAND mypy --cache-dir=/dev/null WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/client/python)
  add_executable(python_abi e2e/python_abi.c)
  terrace_python_test(e2e_python test_python.py $<TARGET_FILE:terrace> $<TARGET_FILE:python_abi> ${SIM_DEVICE_FOLDER})
  if(TARGET terracectl)
    add_test(NAME two_gpus_engines COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/gpu/two_gpus.py $<TARGET_FILE:terraced>
             $<TARGET_FILE:terracectl> --libraries ${SIM_DEVICE_FOLDER} --blocks 16 --sets 1)
    add_test(NAME one_gpu_shared COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/gpu/two_gpus.py $<TARGET_FILE:terraced>
             $<TARGET_FILE:terracectl> --libraries ${SIM_DEVICE_FOLDER} --blocks 16 --one)
    add_test(NAME gpu_tenants COMMAND ${SYSTEM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/gpu/tenants.py $<TARGET_FILE:terraced>
             $<TARGET_FILE:terracectl> --libraries ${SIM_DEVICE_FOLDER} --mib 128)
    set_tests_properties(gpu_tenants PROPERTIES SKIP_RETURN_CODE 77 ENVIRONMENT_MODIFICATION "${ON_DISK}") # as e2e_tenants
    set_tests_properties(two_gpus_engines one_gpu_shared gpu_tenants PROPERTIES TIMEOUT 120 ENVIRONMENT LIBTERRACE=$<TARGET_FILE:terrace>)
  endif()
  # As it is installed.
  set(installed ${CMAKE_CURRENT_BINARY_DIR}/installed)
  add_test(NAME python_installed COMMAND sh -c "'${CMAKE_COMMAND}' --install '${CMAKE_BINARY_DIR}' --component python --prefix '${installed}' &&
           cd / && PYTHONPATH='${installed}/${CMAKE_INSTALL_DATADIR}/terrace/python' LIBTERRACE='$<TARGET_FILE:terrace>' \
           ${SYSTEM_PYTHON} -c 'import terrace, sys; sys.exit(not terrace.__file__.startswith(\"${installed}\") or terrace.version() != \"${PROJECT_VERSION}\")' &&
           PYTHONPATH='${installed}/${CMAKE_INSTALL_DATADIR}/terrace/python' LIBTERRACE=/nonexistent ${SYSTEM_PYTHON} -c 'import terrace; terrace.version()' 2>&1 | grep -q 'OSError: .*nonexistent.*LIBTERRACE'")
endif()

set_tests_properties(e2e_hello e2e_grpcio PROPERTIES PROCESSORS 2)
if(TERRACE_SANITIZE MATCHES thread) # what it does is in cache_disk*, store_* and crash_core too
  set_tests_properties(e2e_disk PROPERTIES LABELS long)
endif()
