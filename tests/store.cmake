terrace_test(store_status LIBS terrace_status)
terrace_test(store_slot LIBS terrace_store)
terrace_test(store_extent LIBS terrace_store)
# The same on huge pages: exits 77 (skipped) where the machine has none to give.
terrace_test(store_extent_huge SOURCES store_extent.c LIBS terrace_store ARGS huge)
terrace_test(store_index LIBS terrace_store)
terrace_test(store_host LIBS terrace_store)
