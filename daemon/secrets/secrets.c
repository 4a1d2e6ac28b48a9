/* See secrets/secrets.h. */
#include "daemon/secrets/secrets.h"

#include "daemon/process/config_errors.h"
#include "daemon/process/log.h"
#include "daemon/process/log_unwritten.h"
#include "daemon/process/tenants.h"
#include "proto/file_stamp.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PATH_MAX_BYTES = 1024 };
enum { CURRENT, OLD };

struct source {
	char *path; /* NULL: not configured */
	struct file_stamp seen, taken; /* at the last look; when it was last read with success, or found gone */
	bool has; /* a secret, in `kept` */
	bool stale; /* the file cannot be used as it is now */
};

struct of_tenant {
	const char *name;
	struct source from[NAMES_SECRETS];
	struct log_again said;
	char problem[SECRET_WHY_MAX]; /* under the lock; empty: none */
};

struct secrets {
	struct names *names;
	uint32_t count;
	struct of_tenant *of;
	struct secret (*kept)[NAMES_SECRETS]; /* [count]; in pages that no core dump has */
	uint64_t looked_us;
	pthread_mutex_t lock;
	atomic_ullong reloads, failures;
	_Atomic uint32_t stale;
};

/* ---- one file ---- */

/* NULL: no memory, or *why. */
static char *path_of(const char *value, const char **why)
{
	static const char credential[] = "credential:";
	const char *name = value + sizeof credential - 1, *folder = getenv("CREDENTIALS_DIRECTORY");
	char path[PATH_MAX_BYTES];

	*why = "no memory";
	if (*value == '/')
		return strdup(value);
	if (!folder || *folder != '/') {
		*why = "the service manager gave no credentials: add LoadCredential=NAME:FILE to the service, or name "
		       "the file's path";
		return NULL;
	}
	if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
		*why = "the path of $CREDENTIALS_DIRECTORY is too long";
		return NULL;
	}
	return strdup(path);
}

SECRET_CLEARS_REGISTERS
static enum status read_one(const struct secrets *s, uint32_t tenant, int which, char why[SECRET_WHY_MAX])
{
	struct of_tenant *of = &s->of[tenant];
	struct source *from = &of->from[which];
	struct secret found;
	uint32_t holder;
	enum status status = secret_read(from->path, of->name, &found, why);

	if (status == STATUS_NOT_FOUND && which == OLD) {
		secret_forget(&s->kept[tenant][which]);
		from->has = false;
		return STATUS_OK;
	}
	if (status != STATUS_OK)
		return status;
	holder = names_holder(s->names, tenant, &found);
	if (holder != NAMES_NO_TENANT) {
		snprintf(why, SECRET_WHY_MAX,
			 "%.500s: tenant %s has the same secret: give each tenant one of its own, or each could name "
			 "the other's blocks",
			 from->path, s->of[holder].name);
		status = STATUS_EXISTS;
	} else {
		s->kept[tenant][which] = found;
		from->has = true;
	}
	secret_forget(&found);
	return status;
}

static void set(const struct secrets *s, uint32_t tenant)
{
	const struct source *from = s->of[tenant].from;
	const struct secret *kept = s->kept[tenant];

	names_set(s->names, tenant, from[CURRENT].has ? &kept[CURRENT] : NULL, from[OLD].has ? &kept[OLD] : NULL);
}

/* ---- changes ---- */

static void tell_problem(struct secrets *s, struct of_tenant *of, const char *why, uint64_t now_us)
{
	uint64_t held;

	atomic_fetch_add_explicit(&s->failures, 1, memory_order_relaxed);
	if (log_again(&of->said, now_us, &held))
		log_warn("secret_reload_failed", LOG_TEXT("tenant", of->name), LOG_TEXT("reason", why),
			 LOG_TEXT("used", "the secret as it was before"), LOG_NUM("held_back", held));
}

static void tell_taken(const struct secrets *s, uint32_t tenant)
{
	uint32_t fingerprints[NAMES_SECRETS] = { 0 };
	const uint32_t n = names_fingerprints(s->names, tenant, fingerprints);
	char current[16] = "", old[16] = "";

	if (n > CURRENT)
		snprintf(current, sizeof current, "%08x", fingerprints[CURRENT]);
	if (n > OLD)
		snprintf(old, sizeof old, "%08x", fingerprints[OLD]);
	log_info("secret_reloaded", LOG_TEXT("tenant", s->of[tenant].name), LOG_TEXT("fingerprint", current),
		 LOG_TEXT("old_fingerprint", old));
}

/* Whether a file has changed since it was taken and is as it was at the last look. *moving: it is not. */
static bool is_due(struct source *from, bool *moving)
{
	struct file_stamp now;

	if (!from->path)
		return false;
	file_stamp_take(from->path, &now);
	*moving |= !file_stamp_same(&now, &from->seen);
	from->seen = now;
	return from->stale || !file_stamp_same(&now, &from->taken);
}

/* Both files are waited for: an operator who changes one after the other means both. */
static void look_at(struct secrets *s, uint32_t tenant, uint64_t now_us)
{
	struct of_tenant *of = &s->of[tenant];
	char why[SECRET_WHY_MAX], problem[SECRET_WHY_MAX] = "";
	bool due[NAMES_SECRETS], moving = false, taken = false, failed = false;

	for (int i = 0; i < NAMES_SECRETS; i++)
		due[i] = is_due(&of->from[i], &moving);
	if (moving || (!due[CURRENT] && !due[OLD]))
		return;
	for (int i = 0; i < NAMES_SECRETS; i++) {
		struct source *from = &of->from[i];

		if (!due[i])
			continue;
		from->stale = read_one(s, tenant, i, why) != STATUS_OK;
		failed |= from->stale && !file_stamp_same(&from->taken, &from->seen);
		taken |= !from->stale;
		from->taken = from->seen;
		if (from->stale)
			memcpy(problem, why, sizeof problem);
	}
	if (taken) {
		set(s, tenant);
		atomic_fetch_add_explicit(&s->reloads, 1, memory_order_relaxed);
		tell_taken(s, tenant);
	}
	pthread_mutex_lock(&s->lock);
	memcpy(of->problem, problem, sizeof of->problem);
	pthread_mutex_unlock(&s->lock);
	if (failed)
		tell_problem(s, of, problem, now_us);
}

void secrets_look(struct secrets *s, uint64_t now_us)
{
	uint32_t stale = 0;

	if (now_us < s->looked_us + SECRETS_EVERY_US)
		return;
	s->looked_us = now_us;
	for (uint32_t i = 0; i < s->count; i++) {
		look_at(s, i, now_us);
		stale += s->of[i].from[CURRENT].stale + s->of[i].from[OLD].stale;
	}
	atomic_store_explicit(&s->stale, stale, memory_order_relaxed);
}

/* ---- the start ---- */

static bool load_one(struct secrets *s, uint32_t tenant, int which, const char *value, struct config_errors *errors)
{
	struct source *from = &s->of[tenant].from[which];
	const char *name = s->of[tenant].name, *option = which == OLD ? "old_secret" : "secret", *cause;
	char why[SECRET_WHY_MAX];

	if (!value || !*value)
		return true;
	from->path = path_of(value, &cause);
	if (!from->path) {
		config_complain(errors, "%s of tenant %s: %.300s: %s", option, name, value, cause);
		return false;
	}
	file_stamp_take(from->path, &from->seen);
	from->taken = from->seen;
	if (read_one(s, tenant, which, why) == STATUS_OK)
		return true;
	config_complain(errors, "%s of tenant %s: %s", option, name, why);
	return false;
}

static bool load_tenant(struct secrets *s, uint32_t tenant, const struct secrets_options *o,
			struct config_errors *errors)
{
	const struct tenant_entry *e = o->tenants ? &o->tenants->of[tenant] : NULL;
	bool ok;

	s->of[tenant].name = e ? e->name : "default";
	ok = load_one(s, tenant, CURRENT, e ? e->secret : o->secret, errors);
	ok &= load_one(s, tenant, OLD, e ? e->old_secret : o->old_secret, errors);
	set(s, tenant); /* before the next one is compared with it */
	return ok;
}

static void *kept_pages(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	madvise(at, bytes, MADV_DONTDUMP);
	return at;
}

static struct secrets *create(const struct secrets_options *o)
{
	const uint32_t count = o->tenants ? o->tenants->count : 1;
	struct secrets *s = calloc(1, sizeof *s);
	uint32_t numbers[TENANTS_MAX] = { TENANT_DEFAULT };

	_Static_assert((int)TENANTS_MAX <= (int)NAMES_TENANTS_MAX, "each has a row");
	if (!s)
		return NULL;
	pthread_mutex_init(&s->lock, NULL);
	for (uint32_t i = 0; o->tenants && i < count; i++)
		numbers[i] = o->tenants->of[i].number;
	s->count = count;
	s->of = calloc(count, sizeof *s->of);
	s->kept = kept_pages(count * sizeof s->kept[0]);
	if (s->of && s->kept && names_create(numbers, count, &s->names) == STATUS_OK)
		return s;
	secrets_destroy(s);
	return NULL;
}

struct secrets *secrets_load(const struct secrets_options *o, struct config_errors *errors)
{
	struct secrets *s = create(o);
	bool ok = s, any = false;

	if (!s)
		config_complain(errors, "secret: no memory for the secrets of the tenants");
	for (uint32_t i = 0; s && i < s->count; i++) {
		ok &= load_tenant(s, i, o, errors);
		any |= s->of[i].from[CURRENT].path != NULL;
	}
	if (ok && o->wanted && !any) {
		config_complain(errors,
				"tenants: none has a secret in the table, and there is a cluster: give one to each "
				"whose blocks other daemons are to find, the same on each daemon");
		ok = false;
	}
	if (ok)
		return s;
	secrets_destroy(s);
	return NULL;
}

const struct names *secrets_names(const struct secrets *s)
{
	return s->names;
}

bool secrets_look_at(struct secrets *s, uint32_t tenant, struct secrets_view *out)
{
	struct of_tenant *of = &s->of[tenant];

	if (!of->from[CURRENT].path)
		return false;
	out->tenant = of->name;
	out->count = names_fingerprints(s->names, tenant, out->fingerprints);
	pthread_mutex_lock(&s->lock);
	memcpy(out->problem, of->problem, sizeof out->problem);
	pthread_mutex_unlock(&s->lock);
	return true;
}

void secrets_destroy(struct secrets *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; s->of && i < s->count; i++)
		for (int k = 0; k < NAMES_SECRETS; k++)
			free(s->of[i].from[k].path);
	free(s->of);
	if (s->kept) {
		explicit_bzero(s->kept, s->count * sizeof s->kept[0]);
		munmap(s->kept, s->count * sizeof s->kept[0]);
	}
	names_destroy(s->names);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void secrets_figures(const struct secrets *s, struct secrets_figures *out)
{
	out->reloads = atomic_load_explicit(&s->reloads, memory_order_relaxed);
	out->failures = atomic_load_explicit(&s->failures, memory_order_relaxed);
	out->stale = atomic_load_explicit(&s->stale, memory_order_relaxed);
}
