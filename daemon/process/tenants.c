/* See process/tenants.h. */
#include "daemon/process/tenants.h"

#include "daemon/process/config.h"
#include "daemon/process/config_errors.h"
#include "daemon/process/config_values.h"
#include "proto/tls.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum kind { BY_UID, BY_GID, BY_NAME };

struct tenant_identity {
	enum kind kind;
	enum role role;
	uint32_t id; /* of a user or group */
	uint32_t tenant; /* index */
	char *name; /* of a certificate */
};

struct reading {
	struct tenants *t;
	struct config_errors *errors;
	const char *file;
	struct tenant_entry *now; /* NULL: none has begun */
	unsigned seen; /* bits of names of its lines */
	bool default_named;
};

enum {
	N_TENANT,
	N_UIDS,
	N_GIDS,
	N_ENGINES,
	N_ADMINS,
	N_PEERS,
	N_HOST_BYTES,
	N_HOST_BYTES_MAX,
	N_PINNED_BYTES_MAX,
	N_GPU_BYTES,
	N_GPU_BYTES_MAX,
	N_DISK_BYTES,
	N_DISK_BYTES_MAX,
	N_CALLS_MAX,
	N_SECRET,
	N_OLD_SECRET,
	NAMES
};
static const char *const names[NAMES] = {
	[N_TENANT] = "tenant",
	[N_UIDS] = "uids",
	[N_GIDS] = "gids",
	[N_ENGINES] = "engines",
	[N_ADMINS] = "admins",
	[N_PEERS] = "peers",
	[N_HOST_BYTES] = "host_bytes",
	[N_HOST_BYTES_MAX] = "host_bytes_max",
	[N_PINNED_BYTES_MAX] = "pinned_bytes_max",
	[N_GPU_BYTES] = "gpu_bytes",
	[N_GPU_BYTES_MAX] = "gpu_bytes_max",
	[N_DISK_BYTES] = "disk_bytes",
	[N_DISK_BYTES_MAX] = "disk_bytes_max",
	[N_CALLS_MAX] = "calls_max",
	[N_SECRET] = "secret",
	[N_OLD_SECRET] = "old_secret",
};

/* A tenant's number: FNV-1a of its name, from 2 on and below WHO_NO_TENANT. */
static uint32_t number_of(const char *name)
{
	uint32_t h = 2166136261u;

	for (const char *p = name; *p; p++)
		h = (h ^ (unsigned char)*p) * 16777619u;
	return !strcmp(name, "default") ? TENANT_DEFAULT : 2 + h % (WHO_NO_TENANT - 2);
}

static bool name_ok(const char *name)
{
	const size_t n = strlen(name);

	for (const char *p = name; *p; p++)
		if (!isalnum((unsigned char)*p) && !strchr("._-", *p))
			return false;
	return n >= 1 && n <= TENANT_NAME_MAX;
}

static const char *begin_tenant(struct reading *r, const char *name)
{
	struct tenants *t = r->t;

	if (!name_ok(name))
		return "a tenant's name has 1 to 63 letters, digits and . _ -";
	r->seen = 1u << N_TENANT;
	if (!strcmp(name, "default") && !r->default_named) {
		r->default_named = true;
		r->now = &t->of[0];
		return NULL;
	}
	for (uint32_t i = 0; i < t->count; i++) {
		if (!strcmp(t->of[i].name, name))
			return "this tenant has begun before: give each one place";
		if (t->of[i].number == number_of(name))
			return "its number is that of another tenant's name: rename it";
	}
	if (t->count == TENANTS_MAX)
		return "more than 256 tenants";
	r->now = &t->of[t->count++];
	*r->now = (struct tenant_entry){ .number = number_of(name) };
	strcpy(r->now->name, name);
	return NULL;
}

/* One name may be a peer's for many tenants. */
static bool may_both_be(const struct tenant_identity *a, const struct tenant_identity *b)
{
	return a->role == ROLE_PEER && b->role == ROLE_PEER && a->tenant != b->tenant;
}

static bool same(const struct tenant_identity *a, const struct tenant_identity *b)
{
	return a->kind == b->kind && (a->kind == BY_NAME ? !strcmp(a->name, b->name) : a->id == b->id);
}

static const char *add_identity(struct reading *r, const struct tenant_identity *new)
{
	struct tenants *t = r->t;
	struct tenant_identity *to;

	for (uint32_t i = 0; i < t->identity_count; i++)
		if (same(&t->identities[i], new) && !may_both_be(&t->identities[i], new))
			return "it is in the table already: a client that has it could be of two tenants or roles";
	if (t->identity_count == TENANT_IDENTITIES_MAX)
		return "more than 8192 users, groups and names";
	to = realloc(t->identities, (t->identity_count + 1) * sizeof(*to));
	if (!to)
		return "no memory";
	t->identities = to;
	to[t->identity_count] = *new;
	to[t->identity_count].name = new->name ? strdup(new->name) : NULL;
	t->identity_count++;
	return new->name && !to[t->identity_count - 1].name ? "no memory" : NULL;
}

static const char *add_id(struct reading *r, enum kind kind, const char *word)
{
	struct tenant_identity i = { .kind = kind, .role = ROLE_ENGINE, .tenant = (uint32_t)(r->now - r->t->of) };
	uint64_t id;

	if (!config_count(word, &id)) {
		const struct passwd *user = kind == BY_UID ? getpwnam(word) : NULL;
		const struct group *group = kind == BY_GID ? getgrnam(word) : NULL;

		if (!user && !group)
			return kind == BY_UID
				       ? "this machine has no user of that name: name one that it has, or give a number"
				       : "this machine has no group of that name: name one that it has, or give a "
					 "number";
		id = user ? user->pw_uid : group->gr_gid;
	}
	if (id >= UINT32_MAX)
		return "no uid or gid is so large";
	if (id == ID_UNMAPPED)
		return "the kernel shows every user and group by this number that it cannot map, as of another user "
		       "namespace: give the tenant one of its own";
	i.id = (uint32_t)id;
	return add_identity(r, &i);
}

static const char *add_name(struct reading *r, enum role role, char *word)
{
	const char *problem = config_san_problem(word);
	const struct tenant_identity i = {
		.kind = BY_NAME, .role = role, .tenant = (uint32_t)(r->now - r->t->of), .name = word
	};

	return problem ? problem : add_identity(r, &i);
}

/* Takes each word of a list, without blanks around it. *bad: the word that is wrong. */
static const char *take_list(struct reading *r, int name, char *value, const char **bad)
{
	const char *problem = NULL;

	for (char *word = value, *next; word && !problem; word = next) {
		next = strchr(word, ',');
		if (next)
			*next++ = 0;
		word += strspn(word, " \t");
		for (size_t n = strlen(word); n && strchr(" \t", word[n - 1]); n--)
			word[n - 1] = 0;
		*bad = word;
		if (!*word)
			problem = "a word of the list is empty";
		else if (name == N_UIDS || name == N_GIDS)
			problem = add_id(r, name == N_UIDS ? BY_UID : BY_GID, word);
		else
			problem = add_name(r,
					   name == N_ADMINS ? ROLE_ADMIN :
					   name == N_PEERS  ? ROLE_PEER :
							      ROLE_ENGINE,
					   word);
	}
	return problem;
}

static const char *take_bytes(struct reading *r, int name, const char *value)
{
	uint64_t *const of[NAMES] = {
		[N_HOST_BYTES] = &r->now->host_bytes,
		[N_HOST_BYTES_MAX] = &r->now->host_bytes_max,
		[N_PINNED_BYTES_MAX] = &r->now->pinned_bytes_max,
		[N_GPU_BYTES] = &r->now->gpu_bytes,
		[N_GPU_BYTES_MAX] = &r->now->gpu_bytes_max,
		[N_DISK_BYTES] = &r->now->disk_bytes,
		[N_DISK_BYTES_MAX] = &r->now->disk_bytes_max,
	};
	uint64_t *to = of[name];

	return config_bytes(value, to) && *to && *to <= 1ull << 46 ? NULL : "not a size such as 4GiB, 64TiB at most";
}

static const char *take_secret(char **to, const char *value)
{
	const char *problem = config_secret_problem(value);

	if (problem)
		return problem;
	free(*to); /* a tenant that is begun twice is refused, and its names are read all the same */
	*to = strdup(value);
	return *to ? NULL : "no memory";
}

static int find(const char *name)
{
	for (int i = 0; i < NAMES; i++)
		if (!strcmp(names[i], name))
			return i;
	return -1;
}

static const char *take_value(struct reading *r, const char *name, const char *value, char *copy, const char **bad)
{
	const int i = find(name);

	*bad = value;
	if (i < 0) {
		*bad = name;
		return "no such name: there are tenant, uids, gids, engines, admins, peers, host_bytes, "
		       "host_bytes_max, pinned_bytes_max, gpu_bytes, gpu_bytes_max, disk_bytes, disk_bytes_max, "
		       "calls_max, secret, old_secret";
	}
	if (i == N_TENANT)
		return begin_tenant(r, value);
	if (!r->now)
		return "no tenant has begun: put `tenant = NAME` before it";
	if (r->seen & 1u << i)
		return "it is set twice for this tenant: leave one line";
	r->seen |= 1u << i;
	if (i == N_CALLS_MAX)
		return config_count(value, &r->now->calls_max) && r->now->calls_max ? NULL : "not a number above 0";
	if (i == N_SECRET || i == N_OLD_SECRET)
		return take_secret(i == N_SECRET ? &r->now->secret : &r->now->old_secret, value);
	if (i >= N_HOST_BYTES)
		return take_bytes(r, i, value);
	strcpy(copy, value);
	return take_list(r, i, copy, bad);
}

static void take_pair(void *arg, unsigned line, const char *problem, const char *name, const char *value)
{
	struct reading *r = arg;
	const char *bad = NULL;
	char *copy;

	if (problem) {
		config_complain(r->errors, "%s:%u: %s", r->file, line, problem);
		return;
	}
	copy = malloc(strlen(value) + 1);
	problem = copy ? take_value(r, name, value, copy, &bad) : "no memory";
	if (problem)
		config_complain(r->errors, "%s:%u: %s: \"%.64s\": %s", r->file, line, name, bad ? bad : "", problem);
	free(copy);
}

static void check_bytes(const struct tenants *t, const char *file, struct config_errors *errors)
{
	for (uint32_t i = 0; i < t->count; i++) {
		const struct tenant_entry *e = &t->of[i];
		const struct {
			const char *tier;
			uint64_t bytes, max;
		} of[] = {
			{ "host", e->host_bytes, e->host_bytes_max },
			{ "gpu", e->gpu_bytes, e->gpu_bytes_max },
			{ "disk", e->disk_bytes, e->disk_bytes_max },
		};

		for (size_t j = 0; j < sizeof of / sizeof of[0]; j++)
			if (of[j].max && of[j].max < of[j].bytes)
				config_complain(errors,
						"%s: tenant %s: %s_bytes_max is less than its %s_bytes: raise it, or "
						"leave it out",
						file, e->name, of[j].tier, of[j].tier);
	}
}

static void check_secrets(const struct tenants *t, const char *file, struct config_errors *errors)
{
	for (uint32_t i = 0; i < t->count; i++)
		if (t->of[i].old_secret && !t->of[i].secret)
			config_complain(errors,
					"%s: tenant %s: an old_secret without a secret: set both, or secret alone",
					file, t->of[i].name);
}

struct tenants *tenants_parse(const char *name, const char *bytes, size_t n, struct config_errors *errors)
{
	struct tenants *t = calloc(1, sizeof(*t));
	struct reading r = { .t = t, .errors = errors, .file = name };
	const uint32_t before = errors->count;

	if (!t) {
		config_complain(errors, "%s: no memory for the table of tenants", name);
		return NULL;
	}
	t->of[t->count++] = (struct tenant_entry){ .name = "default", .number = TENANT_DEFAULT };
	config_lines(bytes, n, take_pair, &r);
	check_bytes(t, name, errors);
	check_secrets(t, name, errors);
	if (errors->count == before)
		return t;
	tenants_free(t);
	return NULL;
}

/* Reads the whole file, at most CONFIG_FILE_MAX bytes; the caller frees it. NULL: it cannot be read, and an error was
 * added. */
static char *bytes_of(const char *file, size_t *n, struct config_errors *errors)
{
	char *bytes = config_file_bytes(file, n);

	if (bytes)
		return bytes;
	if (errno == EFBIG)
		config_complain(errors, "tenants: %s: larger than the 1 MiB that a table may have", file);
	else if (errno == ETIMEDOUT)
		config_complain(errors, "tenants: %s: " CONFIG_PIPE_IDLE, file);
	else
		config_complain(errors, "tenants: %s: %s: make the table readable, or set tenants = off", file,
				strerror(errno));
	return NULL;
}

static uint64_t bytes_of_disks(const struct config *c)
{
	struct config_disk disks[CONFIG_DISKS_MAX];
	const char *problem;
	const uint32_t n = config_disks(c->disks, disks, &problem);
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++)
		bytes += disks[i].bytes;
	return bytes;
}

/* What is kept of a GPU must be there for all tenants, and if there are GPUs, some tenant must have memory there. With
 * gpu_bytes = auto it is compared when the GPUs are opened. */
static bool fits_gpus(const struct tenants *t, const struct config *c, struct config_errors *errors)
{
	uint64_t own = 0, most = 0;

	for (uint32_t i = 0; i < t->count; i++) {
		own += t->of[i].gpu_bytes;
		most += t->of[i].gpu_bytes + t->of[i].gpu_bytes_max;
	}
	if (!c->gpus[0] || !strcmp(c->gpus, "off"))
		return true;
	if (!most)
		config_complain(errors,
				"tenants: %s: no tenant has gpu_bytes or gpu_bytes_max, so none could use the GPUs: "
				"give them some, or set gpus = off",
				c->tenants_file);
	else if (c->gpu_bytes && own > c->gpu_bytes)
		config_complain(errors,
				"tenants: %s: the tenants' gpu_bytes together are more than the daemon's gpu_bytes: "
				"lower them, or raise it",
				c->tenants_file);
	return most && (!c->gpu_bytes || own <= c->gpu_bytes);
}

/* What is kept for each tenant must be there for all of them. */
static bool fits(const struct tenants *t, const struct config *c, struct config_errors *errors)
{
	const bool gpus = fits_gpus(t, c, errors);
	const uint64_t disks = bytes_of_disks(c);
	uint64_t host_own = 0, disk_own = 0;

	for (uint32_t i = 0; i < t->count; i++) {
		host_own += t->of[i].host_bytes;
		disk_own += t->of[i].disk_bytes;
	}
	if (host_own > c->host_bytes)
		config_complain(errors,
				"tenants: %s: the tenants' host_bytes together are more than the daemon's host_bytes: "
				"lower them, or raise it",
				c->tenants_file);
	if (disk_own > disks)
		config_complain(errors,
				"tenants: %s: the tenants' disk_bytes together are %" PRIu64 " bytes, and `disks` has "
				"%" PRIu64 ": lower them, or name more disks or larger sizes there",
				c->tenants_file, disk_own, disks);
	return gpus && host_own <= c->host_bytes && disk_own <= disks;
}

/* The option `peers` counts before the table (rpc/tls.c): an engine's or an administrator's name there would be of no
 * use in the table. */
static void check_peers(const struct tenants *t, const struct config *c, struct config_errors *errors)
{
	for (uint32_t i = 0; i < t->identity_count; i++) {
		const struct tenant_identity *of = &t->identities[i];

		if (of->kind == BY_NAME && of->role != ROLE_PEER && config_sans_have(c->peers, of->name))
			config_complain(errors,
					"tenants: %s: tenant %s: %.128s is a peer's by the option peers: take it out "
					"there, or here",
					c->tenants_file, t->of[of->tenant].name, of->name);
	}
}

struct tenants *tenants_load(const struct config *c, struct config_errors *errors)
{
	size_t n = 0;
	char *bytes = bytes_of(c->tenants_file, &n, errors);
	struct tenants *t = bytes ? tenants_parse(c->tenants_file, bytes, n, errors) : NULL;
	const uint32_t before = errors->count;

	free(bytes);
	if (t)
		check_peers(t, c, errors);
	if (!t || (fits(t, c, errors) && errors->count == before))
		return t;
	tenants_free(t);
	return NULL;
}

void tenants_free(struct tenants *t)
{
	for (uint32_t i = 0; t && i < t->identity_count; i++)
		free(t->identities[i].name);
	for (uint32_t i = 0; t && i < t->count; i++) {
		free(t->of[i].secret);
		free(t->of[i].old_secret);
	}
	if (t)
		free(t->identities);
	free(t);
}

/* ---- the tenant of a client ---- */

static const struct tenant_identity *identity_of(const struct tenants *t, const struct tenant_identity *like)
{
	for (uint32_t i = 0; i < t->identity_count; i++)
		if (same(&t->identities[i], like))
			return &t->identities[i];
	return NULL;
}

/* 0: of none. */
static uint32_t number_by(const struct tenants *t, enum kind kind, uint32_t id)
{
	const struct tenant_identity *i = identity_of(t, &(struct tenant_identity){ .kind = kind, .id = id });

	return i ? t->of[i->tenant].number : 0;
}

uint32_t tenants_of_process(const struct tenants *t, const struct ucred *process, const gid_t *groups, size_t n)
{
	uint32_t found = number_by(t, BY_UID, process->uid);

	if (found)
		return found;
	found = number_by(t, BY_GID, process->gid);
	for (size_t g = 0; g < n; g++) {
		const uint32_t number = number_by(t, BY_GID, groups[g]);

		if (number && found && number != found)
			return 0;
		found = number ? number : found;
	}
	return found;
}

/* The first name of a certificate that is in the table, and the role of all. NULL: there is none, or some that must not
 * be together. */
static const struct tenant_identity *first_of_names(const struct tenants *t, const struct tls_names *list,
						    enum role *role)
{
	const struct tenant_identity *first = NULL;

	*role = ROLE_ENGINE;
	for (uint32_t n = 0; n < list->count; n++) {
		const struct tenant_identity *i =
			identity_of(t, &(struct tenant_identity){ .kind = BY_NAME, .name = (char *)list->name[n] });

		if (!i)
			continue;
		const bool peer = i->role == ROLE_PEER;

		if (first && (peer != (*role == ROLE_PEER) || (!peer && i->tenant != first->tenant)))
			return NULL;
		if (!first || i->role == ROLE_ADMIN)
			*role = i->role;
		first = first ? first : i;
	}
	return first;
}

uint32_t tenants_of_names(const struct tenants *t, const struct tls_names *list, enum role *role)
{
	const struct tenant_identity *first = first_of_names(t, list, role);

	return first ? t->of[first->tenant].number : 0;
}

static bool has_name(const struct tls_names *list, const char *name)
{
	for (uint32_t n = 0; n < list->count; n++)
		if (!strcmp(list->name[n], name))
			return true;
	return false;
}

void tenants_of_peer(const struct tenants *t, const struct tls_names *list, uint64_t out[WHO_TENANT_WORDS])
{
	_Static_assert(TENANTS_MAX <= 64 * WHO_TENANT_WORDS, "a bit a tenant");
	memset(out, 0, WHO_TENANT_WORDS * sizeof out[0]);
	for (uint32_t i = 0; i < t->identity_count; i++) {
		const struct tenant_identity *of = &t->identities[i];

		if (of->role == ROLE_PEER && has_name(list, of->name))
			out[of->tenant / 64] |= 1ull << of->tenant % 64;
	}
}

void tenants_text(const struct tenants *t, const uint64_t of[WHO_TENANT_WORDS], char *out, size_t size)
{
	size_t used = 0;

	*out = 0;
	for (uint32_t i = 0; i < t->count && used < size; i++)
		if (of[i / 64] >> i % 64 & 1)
			used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", t->of[i].name);
}
