/* Blocks in memory that have not earned their place yet: refused by admission, or loaded ahead. */
#ifndef TERRACE_DAEMON_MEMORY_PROBATION_H
#define TERRACE_DAEMON_MEMORY_PROBATION_H

/* What is to be read ahead: see advice/prefetch.c. */
enum ahead_kind { AHEAD_NO, AHEAD_ASKED, AHEAD_EXPECTED, AHEAD_KINDS };

#endif
