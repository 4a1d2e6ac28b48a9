/* The fake daemon's GPU: two extents of memory a layout, a progress page, and ways to lie about them. */
#include "tests/client/fake.h"

#include "proto/fdsock.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/sim/device.h"

enum { EXTENT_BYTES = SIM_GRANULARITY, RANGE_EXTENTS = 8, PAGE = 4096 };

static int page_make(void)
{
	int fd = memfd_create("fake page", MFD_CLOEXEC);

	MUST(fd >= 0 && !ftruncate(fd, PAGE));
	return fd;
}

void fake_gpu_start(struct fake *f, const struct device_ops *ops)
{
	struct fake_gpu *g = &f->gpu;
	const char *why = "";

	pthread_mutex_lock(&f->lock);
	if (ops->open(0, &g->device, &why) || ops->info(g->device, &g->info, &why)) {
		fprintf(stderr, "fake: no GPU: %s\n", why);
		abort();
	}
	g->range_bytes = RANGE_EXTENTS * EXTENT_BYTES;
	for (int l = 0; l < FAKE_GPU_LAYOUTS; l++) {
		MUST(ops->range_reserve(g->device, g->range_bytes, &g->range[l], &why) == STATUS_OK);
		for (uint64_t i = 0; i < FAKE_EXTENTS; i++) {
			MUST(ops->extent_make(g->device, g->range[l] + i * EXTENT_BYTES, EXTENT_BYTES, &g->extents[l][i],
					      &g->memory[l][i], &why) == STATUS_OK);
			g->hold[l][i] = page_make();
		}
	}
	g->progress_page_file = page_make();
	g->empty = memfd_create("fake nothing", MFD_CLOEXEC);
	g->progress_page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, g->progress_page_file, 0);
	MUST(g->progress_page != MAP_FAILED && g->empty >= 0);
	g->ops = ops;
	pthread_mutex_unlock(&f->lock);
}

void fake_gpu_stop(struct fake *f)
{
	struct fake_gpu *g = &f->gpu;

	pthread_mutex_lock(&f->lock);
	for (int l = 0; l < FAKE_GPU_LAYOUTS; l++) {
		for (int i = 0; i < FAKE_EXTENTS; i++) {
			g->ops->extent_drop(g->device, &g->extents[l][i]);
			close(g->memory[l][i]);
			close(g->hold[l][i]);
		}
		g->ops->range_free(g->device, g->range[l], g->range_bytes);
	}
	munmap((void *)(uintptr_t)g->progress_page, PAGE);
	close(g->progress_page_file);
	close(g->empty);
	g->ops->close(g->device);
	g->ops = NULL;
	pthread_mutex_unlock(&f->lock);
}

uint8_t *fake_gpu_at(struct fake *f, const struct fake_block *b, uint32_t layout, uint32_t *extent, uint64_t *offset)
{
	uint64_t i = (uint64_t)(b - f->blocks), stride = (f->block_bytes[layout] + 255) / 256 * 256;

	*extent = FAKE_GPU_EXTENT + layout * FAKE_EXTENTS + (uint32_t)(i % FAKE_EXTENTS);
	*offset = i / FAKE_EXTENTS * stride;
	MUST(*offset + stride <= EXTENT_BYTES);
	return (uint8_t *)sim_at(f->gpu.extents[layout][i % FAKE_EXTENTS].address + *offset);
}

/* Numbers that are wrong, and descriptors. */
static void extent_lie(struct fake *f, struct fdsock_extent *e, int fds[2], size_t *count)
{
	switch (f->fd_fault) {
	case FAKE_FD_GPU_UNKNOWN: e->gpu = 1; break;
	case FAKE_FD_GPU_ODD: e->at += PAGE; break;
	case FAKE_FD_GPU_FAR: e->at = e->range; break;
	case FAKE_FD_GPU_WRAPS: e->at = 0 - (uint64_t)EXTENT_BYTES; break;
	case FAKE_FD_GPU_OVERLAPS: e->at = 0; break;
	case FAKE_FD_GPU_RANGE: e->range += f->maps * (uint64_t)EXTENT_BYTES; break;
	case FAKE_FD_GPU_HUGE: e->range = 1ull << 62; break;
	case FAKE_FD_GPU_NO_MEMORY: *count = 1; break;
	case FAKE_FD_GPU_NO_HOLD: fds[0] = f->stop_pipe[0]; break;
	case FAKE_FD_GPU_SMALL_HOLD: fds[0] = f->gpu.empty; break;
	case FAKE_FD_GPU_NOT_MEMORY: fds[1] = f->gpu.empty; break;
	case FAKE_FD_GPU_SIZE: e->bytes *= 2; break;
	case FAKE_FD_GPU_IS_HOST: e->gpu = FDSOCK_NO_GPU; break;
	default: break;
	}
}

bool fake_gpu_extent(struct fake *f, struct fdsock_extent *e, int fds[2], size_t *count)
{
	uint32_t n = e->extent - FAKE_GPU_EXTENT, l = n / FAKE_EXTENTS, i = n % FAKE_EXTENTS;

	*count = 1;
	if (e->extent == FDSOCK_EXTENT_PROGRESS_PAGE) {
		fds[0] = f->fd_fault == FAKE_FD_PROGRESS_PAGE_EMPTY ? f->gpu.empty : f->gpu.progress_page_file;
		e->bytes = PAGE;
		return true;
	}
	if (e->extent < FAKE_GPU_EXTENT || n >= FAKE_GPU_LAYOUTS * FAKE_EXTENTS)
		return false;
	*count = 2;
	fds[0] = f->gpu.hold[l][i];
	fds[1] = f->gpu.memory[l][i];
	e->bytes = EXTENT_BYTES;
	e->gpu = 0;
	e->at = (uint64_t)n * EXTENT_BYTES;
	e->range = f->gpu.range_bytes;
	e->range_id = FAKE_GPU_RANGE; /* all layouts' */
	extent_lie(f, e, fds, count);
	return true;
}
