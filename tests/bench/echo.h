/* The floor under a unary call: a server that sends the request's bytes back, and a client, with nothing but
 * gRPC C core on a Unix socket. The server is this program run again, since terraced is another process too.
 */
#ifndef TERRACE_BENCH_ECHO_H
#define TERRACE_BENCH_ECHO_H

#define ECHO_SERVER_COMMAND "echo-server"

/* Serves on the socket until it is killed. Returns an exit code if it cannot. */
int echo_serve(const char *path);

struct echo;
struct echo *echo_open(void);
/* One call with an empty message. */
void echo_call(struct echo *e);
void echo_close(struct echo *e);

#endif
