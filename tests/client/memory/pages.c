/* Writable pages, held against a model that knows which uses a page has: the kernel is asked of every page whether it
 * can be written. Then the same through the library: reserved slots alone are writable, and no longer than a second
 * after. */
#include "client/memory/pages.h"
#include "tests/client/rig.h"

#include "client/value/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 300, USES = 40, RESTS = 3 };

static int zeroes[2];

/* Whether this process may write the byte: the kernel says so without a signal. It is written anew as it was. */
static bool writable(uint8_t *at)
{
	const uint8_t was = *at;

	ck_assert_int_eq(write(zeroes[1], &was, 1), 1);
	if (read(zeroes[0], at, 1) == 1)
		return true;
	ck_assert_int_eq(errno, EFAULT);
	ck_assert_int_eq(read(zeroes[0], &(uint8_t){0}, 1), 1);
	return false;
}

static void pipe_open(void)
{
	ck_assert_int_eq(pipe(zeroes), 0);
}

/* ---- pages alone ---- */

static int memory_file(uint64_t size)
{
	const int fd = memfd_create("pages", MFD_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
	return fd;
}

static uint8_t *memory_map(uint64_t size)
{
	const int fd = memory_file(size);
	uint8_t *base = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);

	ck_assert_ptr_ne(base, MAP_FAILED);
	close(fd);
	return base;
}

struct use {
	uint64_t offset, bytes; /* bytes 0: none */
};

static bool has_page(const struct use *u, uint64_t page)
{
	return u->bytes && u->offset < (page + 1) * PAGE && u->offset + u->bytes > page * PAGE;
}

/* What must be so of each page: used ones are writable; unused ones are not once so many calls have found them so. */
static void model_check(uint8_t *base, const struct use *uses, const uint32_t *unused)
{
	for (uint32_t i = 0; i < PAGES; i++) {
		bool used = false;

		for (int u = 0; u < USES; u++)
			used |= has_page(&uses[u], i);
		if (used)
			ck_assert_msg(writable(base + i * (size_t)PAGE), "page %u is used, and cannot be written", i);
		else if (unused[i] >= RESTS)
			ck_assert_msg(!writable(base + i * (size_t)PAGE), "page %u is unused, and can be written", i);
	}
}

static void unused_count(const struct use *uses, uint32_t *unused)
{
	for (uint32_t i = 0; i < PAGES; i++) {
		unused[i]++;
		for (int u = 0; u < USES; u++)
			if (has_page(&uses[u], i))
				unused[i] = 0;
	}
}

static void unused_reset(const struct use *u, uint32_t *unused)
{
	for (uint64_t i = u->offset / PAGE; i * PAGE < u->offset + u->bytes; i++)
		unused[i] = 0;
}

START_TEST(only_what_is_used_is_writable)
{
	uint8_t *base = memory_map(PAGES * PAGE);
	struct client_pages *p = client_pages_create(base, PAGES * PAGE, PAGE);
	uint32_t unused[PAGES];
	struct use uses[USES] = {{0}};

	for (uint32_t i = 0; i < PAGES; i++)
		unused[i] = RESTS; /* none has been opened yet */
	srand48(7 + _i);
	pipe_open();
	for (int round = 0; round < 600; round++) {
		struct use *u = &uses[lrand48() % USES];

		if (u->bytes) {
			unused_reset(u, unused);
			client_pages_leave(p, u->offset, u->bytes);
			u->bytes = 0;
		} else {
			u->offset = (uint64_t)lrand48() % (PAGES - 20) * PAGE;
			u->bytes = 1 + (uint64_t)lrand48() % (20 * PAGE);
			ck_assert_int_eq(client_pages_open(p, u->offset, u->bytes), TERRACE_OK);
			unused_reset(u, unused);
		}
		if (lrand48() % 4 == 0) {
			client_pages_rest(p, CLIENT_REST_A_SECOND, UINT64_MAX);
			unused_count(uses, unused);
		}
		if (round % 8 == 0)
			model_check(base, uses, unused);
	}
	for (int u = 0; u < USES; u++)
		if (uses[u].bytes)
			client_pages_leave(p, uses[u].offset, uses[u].bytes);
	ck_assert(!client_pages_rest(p, CLIENT_REST_NOW, 0));
	for (uint32_t i = 0; i < PAGES; i++)
		ck_assert(!writable(base + i * (size_t)PAGE));
	client_pages_destroy(p);
	munmap(base, PAGES * PAGE);
}
END_TEST

/* A session that puts steadily finds its pages as it left them. */
START_TEST(pages_rest_before_they_are_closed)
{
	uint8_t *base = memory_map(8 * PAGE);
	struct client_pages *p = client_pages_create(base, 8 * PAGE, PAGE);

	pipe_open();
	for (int round = 0; round < 10; round++) {
		ck_assert_int_eq(client_pages_open(p, PAGE, 2 * PAGE), TERRACE_OK);
		client_pages_leave(p, PAGE, 2 * PAGE);
		for (int i = 0; i < RESTS - 1; i++)
			ck_assert(client_pages_rest(p, CLIENT_REST_A_SECOND, UINT64_MAX));
		ck_assert(writable(base + PAGE) && writable(base + 2 * PAGE));
	}
	ck_assert(!client_pages_rest(p, CLIENT_REST_A_SECOND, UINT64_MAX));
	ck_assert(!writable(base + PAGE) && !writable(base + 2 * PAGE));
	client_pages_destroy(p);
	munmap(base, 8 * PAGE);
}
END_TEST

/* Of a session that goes on putting no more is closed than its time allows; all is, when it has not for a second. */
START_TEST(a_busy_session_keeps_its_pages)
{
	uint8_t *base = memory_map(8 * PAGE);
	struct client_pages *p = client_pages_create(base, 8 * PAGE, PAGE);

	pipe_open();
	ck_assert_int_eq(client_pages_open(p, 0, PAGE), TERRACE_OK);
	client_pages_leave(p, 0, PAGE);
	for (int i = 0; i < 10; i++) {
		ck_assert_int_eq(client_pages_open(p, 4 * PAGE, PAGE), TERRACE_OK);
		client_pages_leave(p, 4 * PAGE, PAGE);
		ck_assert(client_pages_rest(p, CLIENT_REST_A_SECOND, 0));
	}
	ck_assert(writable(base) && writable(base + 4 * PAGE));
	ck_assert_int_eq(client_pages_open(p, 4 * PAGE, PAGE), TERRACE_OK);
	client_pages_leave(p, 4 * PAGE, PAGE);
	ck_assert(client_pages_rest(p, CLIENT_REST_A_SECOND, UINT64_MAX));
	ck_assert(!writable(base) && writable(base + 4 * PAGE));
	for (int i = 0; i < RESTS; i++)
		client_pages_rest(p, CLIENT_REST_A_SECOND, 0);
	ck_assert(!writable(base + 4 * PAGE));
	client_pages_destroy(p);
	munmap(base, 8 * PAGE);
}
END_TEST

/* A burst of scattered slots is opened by pieces of 2 MiB, which are closed when it is over. */
START_TEST(bursts_open_pieces)
{
	enum { PIECE = 512, BURST = 100 };
	uint8_t *base = memory_map((uint64_t)4 * PIECE * PAGE);
	struct client_pages *p = client_pages_create(base, (uint64_t)4 * PIECE * PAGE, PAGE);

	pipe_open();
	for (uint32_t i = 0; i < BURST; i++)
		ck_assert_int_eq(client_pages_open(p, (uint64_t)i * 4 * PAGE, PAGE), TERRACE_OK);
	for (uint32_t i = 0; i < BURST; i++)
		ck_assert(writable(base + (size_t)i * 4 * PAGE));
	ck_assert(writable(base + (PIECE - 1) * PAGE) && !writable(base + PIECE * PAGE));
	for (int i = 0; i < RESTS; i++)
		ck_assert(client_pages_rest(p, CLIENT_REST_A_SECOND, 0));
	for (uint32_t i = 0; i < PIECE; i++)
		ck_assert_int_eq(writable(base + (size_t)i * PAGE), i % 4 == 0 && i < 4 * BURST);
	for (uint32_t i = 0; i < BURST; i++)
		client_pages_leave(p, (uint64_t)i * 4 * PAGE, PAGE);
	client_pages_destroy(p);
	munmap(base, (uint64_t)4 * PIECE * PAGE);
}
END_TEST

static uint32_t mappings_count(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	uint32_t n = 0;

	while (fgets(line, sizeof(line), f))
		n++;
	fclose(f);
	return n;
}

/* Every other page: the kernel gives a process 65530 mappings, of which the engine wants some. */
START_TEST(scattered_slots_leave_the_engine_room)
{
	enum { MANY = 100000 };
	uint8_t *base = memory_map((uint64_t)MANY * PAGE);
	struct client_pages *p = client_pages_create(base, (uint64_t)MANY * PAGE, PAGE);

	pipe_open();
	for (uint32_t i = 1; i < MANY; i += 2) {
		ck_assert_msg(client_pages_open(p, (uint64_t)i * PAGE, PAGE) == TERRACE_OK, "%s", terrace_error());
		if (i % 64 == 1) /* at leisure */
			client_pages_rest(p, CLIENT_REST_A_SECOND, 0);
	}
	for (uint32_t i = 1; i < MANY; i += 2)
		ck_assert(writable(base + (size_t)i * PAGE));
	ck_assert_uint_lt(mappings_count(), 20000);
	ck_assert(!writable(base));
	/* What goes by pieces goes back. */
	for (uint32_t i = 1; i < MANY; i += 2)
		client_pages_leave(p, (uint64_t)i * PAGE, PAGE);
	for (int i = 0; i < 2 * RESTS; i++)
		client_pages_rest(p, CLIENT_REST_A_SECOND, UINT64_MAX);
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert(!writable(base + (size_t)i * PAGE));
	client_pages_destroy(p);
	munmap(base, (uint64_t)MANY * PAGE);
}
END_TEST

START_TEST(a_descriptor_to_read_from_is_none_to_write)
{
	int fd = memory_file(PAGE), reads;
	char path[64];
	struct client_pages *p;
	uint8_t *base;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	reads = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(reads, 0);
	base = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, reads, 0);
	ck_assert_ptr_ne(base, MAP_FAILED);
	p = client_pages_create(base, PAGE, PAGE);
	ck_assert_int_eq(client_pages_open(p, 0, PAGE), TERRACE_DENIED);
	ck_assert_ptr_nonnull(strstr(terrace_error(), "making reserved slots writable"));
	ck_assert(!client_pages_rest(p, CLIENT_REST_NOW, 0));
	client_pages_destroy(p);
	munmap(base, PAGE);
	close(reads);
	close(fd);
}
END_TEST

/* ---- through the library ---- */

static void rig_open(void)
{
	pipe_open();
	client_rig_open(2);
}

/* Until the page there is as wanted; ten times what it needs. */
static bool becomes(uint8_t *at, bool wanted)
{
	const uint64_t until = client_deadline_us(15 * 1000000ull);

	while (writable(at) != wanted && client_now_us() < until)
		usleep(20000);
	return writable(at) == wanted;
}

static struct terrace_reservation *reserve(uint32_t first, uint32_t n)
{
	const struct terrace_keys some = {bytes + first * KEY_BYTES, n, KEY_BYTES};
	struct terrace_reservation *r;

	ck_assert_msg(!terrace_reserve(session, &some, NULL, 0, NULL, &r), "%s", terrace_error());
	return r;
}

static void fill(struct terrace_reservation *r)
{
	for (uint32_t i = 0; i < terrace_reservation_count(r); i++)
		for (uint32_t l = 0; l < 2; l++)
			memset(terrace_reservation_block(r, i, l), 1, terrace_block_bytes(&layouts[l]));
}

START_TEST(a_slot_is_writable_while_it_is_reserved)
{
	struct terrace_reservation *r = reserve(0, 2), *other = reserve(2, 1);
	uint8_t *mine = terrace_reservation_block(r, 0, 1), *others = terrace_reservation_block(other, 0, 1);
	const size_t size = terrace_block_bytes(&layouts[1]);

	fill(r);
	fill(other);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, NULL), TERRACE_OK);
	ck_assert(becomes(mine, false));
	ck_assert(!writable(mine + size - 1));
	/* Its neighbour is reserved yet, however long that takes. */
	ck_assert(writable(others) && writable(others + size - 1));
	terrace_abort(other);
	ck_assert(becomes(others, false));
}
END_TEST

/* The last page of a slot and the first behind it, which is not reserved. */
START_TEST(what_is_not_reserved_is_not_writable)
{
	struct terrace_reservation *r = reserve(0, 1);
	uint8_t *block = terrace_reservation_block(r, 0, 1);
	const size_t size = terrace_block_bytes(&layouts[1]), slot = (size + 2 * PAGE - 1) / PAGE * PAGE;

	fill(r);
	ck_assert(!writable(block - PAGE + slot));
	ck_assert(!writable(block + slot + 8 * PAGE));
	terrace_abort(r);
}
END_TEST

START_TEST(a_stray_write_ends_the_engine)
{
	struct terrace_reservation *r = reserve(0, 1);
	uint8_t *block = terrace_reservation_block(r, 0, 0);

	fill(r);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, NULL), TERRACE_OK);
	becomes(block, false);
	signal(SIGSEGV, SIG_DFL); /* which a sanitizer would make words of */
	*block = 2;
}
END_TEST

/* What has been unmapped comes again. */
START_TEST(the_mapping_itself_goes_in_the_end)
{
	struct terrace_reservation *r = reserve(0, 2);
	unsigned maps;

	fill(r);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, NULL), TERRACE_OK);
	maps = fake_count(&fake, &fake.maps);
	ck_assert_uint_eq(maps, 2);
	ck_assert_uint_ge(fake_await(&fake, &fake.unmapped, 2), 2);
	r = reserve(2, 2);
	fill(r);
	ck_assert_uint_eq(fake_count(&fake, &fake.maps), 4);
	ck_assert_int_eq(terrace_commit(r, 0, NULL, NULL), TERRACE_OK);
}
END_TEST

/* What the engine has open when it is closed does not matter any more. */
START_TEST(a_session_is_closed_with_slots_reserved)
{
	struct terrace_reservation *r = reserve(0, 2);

	fill(r);
	terrace_session_close(session);
	session = NULL;
	terrace_abort(r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("client_pages");
	TCase *alone = tcase_create("pages"), *library = tcase_create("library");
	SRunner *runner = srunner_create(s);
	int failed;

	tcase_add_loop_test(alone, only_what_is_used_is_writable, 0, 4);
	tcase_add_test(alone, pages_rest_before_they_are_closed);
	tcase_add_test(alone, a_busy_session_keeps_its_pages);
	tcase_add_test(alone, bursts_open_pieces);
	tcase_add_test(alone, scattered_slots_leave_the_engine_room);
	tcase_add_test(alone, a_descriptor_to_read_from_is_none_to_write);
	tcase_add_checked_fixture(library, rig_open, client_rig_close);
	tcase_add_test(library, a_slot_is_writable_while_it_is_reserved);
	tcase_add_test(library, what_is_not_reserved_is_not_writable);
	tcase_add_test_raise_signal(library, a_stray_write_ends_the_engine, SIGSEGV);
	tcase_add_test(library, the_mapping_itself_goes_in_the_end);
	tcase_add_test(library, a_session_is_closed_with_slots_reserved);
	suite_add_tcase(s, alone);
	suite_add_tcase(s, library);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
