/* The certificates of `listen`, as they are on this machine: `terraced --check-config` tells what is wrong with them. A
 * start finds it when it makes the TLS of `listen` (rpc/tls.h). */
#ifndef TERRACE_DAEMON_PROCESS_LISTEN_FILES_H
#define TERRACE_DAEMON_PROCESS_LISTEN_FILES_H

#include "store/status.h"

struct config;
struct config_errors;

/* With --check-config adds what is wrong to the errors. INVALID if anything is, else s. s not OK: nothing is looked at.
 */
enum status listen_files_refuse(const struct config *c, enum status s, struct config_errors *errors);

#endif
