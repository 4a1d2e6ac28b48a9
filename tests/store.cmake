terrace_test(store_status LIBS terrace_status)
terrace_test(store_slot LIBS terrace_store)
terrace_test(store_extent LIBS terrace_store)
# The same on huge pages: exits 77 (skipped) where the machine has none to give.
terrace_test(store_extent_huge SOURCES store_extent.c LIBS terrace_store ARGS huge)
terrace_test(store_index LIBS terrace_store)
terrace_test(store_host LIBS terrace_store)
foreach(name store_ring store_ring_fault store_ring_threads)
  terrace_test(${name} SOURCES ${name}.c store_ring_rig.c LIBS terrace_store)
endforeach()
# The catalog. liblmdb is not instrumented.
foreach(name store_catalog store_catalog_model store_catalog_damage store_catalog_speed)
  terrace_test(${name} SOURCES ${name}.c store_catalog_rig.c LIBS terrace_store PkgConfig::LMDB)
  set_tests_properties(${name} PROPERTIES ENVIRONMENT TSAN_OPTIONS=ignore_noninstrumented_modules=1)
endforeach()
# The same on a file system that is full: exits 77 (skipped) where none may be mounted.
add_test(NAME store_catalog_full COMMAND store_catalog full)
set_tests_properties(store_catalog_full PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77
                     ENVIRONMENT TSAN_OPTIONS=ignore_noninstrumented_modules=1)
terrace_test(store_block_record LIBS terrace_store)

# The disk, its bytes, its faults; the last two meet real ones, and exit 77 where nothing can be mounted.
add_library(store_disk_rig STATIC store_disk_rig.c)
target_link_libraries(store_disk_rig PUBLIC terrace_store PkgConfig::CHECK)
foreach(name store_disk store_disk_bytes store_disk_fault store_disk_identity)
  terrace_test(${name} LIBS store_disk_rig)
endforeach()
terrace_test(store_disk_full LIBS store_disk_rig)
pkg_check_modules(FUSE IMPORTED_TARGET fuse3)
if(FUSE_FOUND)
  add_executable(faultfs fault/faultfs.c)
  target_link_libraries(faultfs PRIVATE PkgConfig::FUSE)
  terrace_test(store_disk_fuse LIBS store_disk_rig ARGS $<TARGET_FILE:faultfs>)
endif()
