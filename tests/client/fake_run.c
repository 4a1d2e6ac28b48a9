/* Starting and stopping the fake daemon, and what tests ask of it. */
#include "tests/client/fake.h"

#include "client/value/clock.h"

#include <grpc/grpc_security.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void serve(struct fake *f)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	grpc_arg arg = {GRPC_ARG_INTEGER, GRPC_ARG_ALLOW_REUSEPORT, {.integer = 0}};
	grpc_channel_args args = {1, &arg};
	grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();

	f->ending = false;
	f->server = grpc_server_create(&args, NULL);
	f->queue = grpc_completion_queue_create_for_next(NULL);
	grpc_server_register_completion_queue(f->server, f->queue, NULL);
	MUST(grpc_server_add_http2_port(f->server, f->address, credentials));
	grpc_server_credentials_release(credentials);
	grpc_server_start(f->server);
	fake_call_request(f);
	MUST(!pthread_create(&f->accepter, NULL, fake_accept_main, f));

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", f->fd_path);
	unlink(f->fd_path);
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	MUST(!bind(f->listener, (struct sockaddr *)&address, sizeof(address)) && !listen(f->listener, 8));
	MUST(!pipe(f->stop_pipe));
	f->socket_count = 0;
	MUST(!pthread_create(&f->fd_thread, NULL, fake_fd_main, f));
}

static void unserve(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
	f->ending = true;
	pthread_mutex_unlock(&f->lock);
	grpc_server_shutdown_and_notify(f->server, f->queue, f);
	grpc_server_cancel_all_calls(f->server);
	pthread_mutex_lock(&f->lock);
	while (f->running)
		pthread_cond_wait(&f->idle, &f->lock);
	pthread_mutex_unlock(&f->lock);
	grpc_completion_queue_shutdown(f->queue);
	pthread_join(f->accepter, NULL);
	grpc_server_destroy(f->server);
	grpc_completion_queue_destroy(f->queue);

	MUST(write(f->stop_pipe[1], "x", 1) == 1);
	pthread_join(f->fd_thread, NULL);
	for (unsigned i = 0; i < f->socket_count; i++)
		close(f->sockets[i]);
	close(f->listener);
	close(f->stop_pipe[0]);
	close(f->stop_pipe[1]);
	unlink(f->fd_path);
}

void fake_start(struct fake *f)
{
	memset(f, 0, sizeof(*f));
	grpc_init();
	strcpy(f->folder, "/tmp/terrace-fake-XXXXXX");
	MUST(mkdtemp(f->folder));
	snprintf(f->address, sizeof(f->address), "unix:%s/rpc", f->folder);
	snprintf(f->fd_path, sizeof(f->fd_path), "%s/fds", f->folder);
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->idle, NULL);
	f->epoch = 1000;
	f->session = 77;
	f->next_id = 1;
	f->extent_bytes = 16 << 20;
	for (int i = 0; i < FAKE_EXTENTS; i++) {
		f->memory[i] = memfd_create("fake", MFD_CLOEXEC);
		MUST(f->memory[i] >= 0 && !ftruncate(f->memory[i], (off_t)f->extent_bytes));
		f->base[i] = mmap(NULL, f->extent_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->memory[i], 0);
		MUST(f->base[i] != MAP_FAILED);
	}
	serve(f);
}

void fake_stop(struct fake *f)
{
	unserve(f);
	for (int i = 0; i < FAKE_EXTENTS; i++) {
		munmap(f->base[i], f->extent_bytes);
		close(f->memory[i]);
	}
	if (f->opened)
		terrace__v1__open_session_request__free_unpacked(f->opened, NULL);
	unlink(f->address + strlen("unix:"));
	rmdir(f->folder);
	pthread_cond_destroy(&f->idle);
	pthread_mutex_destroy(&f->lock);
	grpc_shutdown();
}

void fake_restart(struct fake *f)
{
	unserve(f);
	memset(f->blocks, 0, sizeof(f->blocks));
	f->epoch++;
	f->session++;
	serve(f);
}

unsigned fake_count(struct fake *f, const unsigned *counter)
{
	unsigned value;

	pthread_mutex_lock(&f->lock);
	value = *counter;
	pthread_mutex_unlock(&f->lock);
	return value;
}

unsigned fake_await(struct fake *f, const unsigned *counter, unsigned least)
{
	uint64_t until = client_deadline_us(30000000);

	while (fake_count(f, counter) < least && client_now_us() < until)
		poll(NULL, 0, 1);
	return fake_count(f, counter);
}

struct terrace_layout fake_layout(void)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;

	l.layers = 2;
	l.heads = l.total_heads = 2;
	l.head_dim_k = l.head_dim_v = 64;
	l.block_tokens = 16;
	l.k_format = l.v_format = TERRACE_FORMAT_FP8;
	memset(l.fingerprint, 7, sizeof(l.fingerprint));
	return l;
}
