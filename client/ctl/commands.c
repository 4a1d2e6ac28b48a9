/* The table of commands: the name, arguments, help and exit codes of each. The commands use the indices of their
 * options, so the order here must match theirs.
 */
#include "client/ctl/ctl.h"

#define EXITS_DAEMON "1 the daemon refused, 2 usage, 5 no daemon or no answer in time."

const struct ctl_command ctl_commands[] = {
	{
		.name = "status",
		.synopsis = "",
		.summary = "tell whether the daemon serves",
		.text = "Asks the daemon's health service and prints its state (serving; degraded: "
			"serving, but without a disk or a GPU of the configuration; or draining), the reasons if it is degraded, version, uptime and boot epoch. A "
			"script that waits for a daemon calls it until it returns 0.",
		.exits = "0 serving, 3 it answers but does not serve, " EXITS_DAEMON,
		.run = ctl_run_status,
	},
	{
		.name = "stat",
		.synopsis = "[--watch SECONDS] [--count N] [--describe] [PATTERN]...",
		.summary = "print counters and gauges",
		.text = "Prints the daemon's counters and gauges, each under its name and labels, and then "
			"a line for each of its disks: number, in the order of the configuration; health (healthy, "
			"full, slow, quarantined, unusable: not in use since the start); engine (io_uring or threads); blocks; bytes of slab files and the "
			"budget; blocks whose bytes proved wrong. "
			"With PATTERNs only those that match one: a shell pattern ('terrace_lookup_*'), or, "
			"without * ? [, any part of the name or labels.\n"
			"With --watch it prints them again and again; counters then have a second column, "
			"their increase a second since the time before, and with --json each round is one "
			"line.",
		.exits = "0 printed, 3 no such statistic, " EXITS_DAEMON,
		.words_max = -1,
		.options = {{"watch", "SECONDS", "print every so many seconds, until interrupted"},
			    {"count", "N", "with --watch: end after N rounds"},
			    {"describe", NULL, "also print what each one means"}},
		.run = ctl_run_stat,
	},
	{
		.name = "config",
		.synopsis = "[NAME]...",
		.summary = "print the configuration in force",
		.text = "Prints the daemon's options, each with its value and where that came from: default, file, environment or flag. "
			"With NAMEs only those whose name has one of them in it. What they mean: terraced --help.",
		.exits = "0 printed, 3 no such option, " EXITS_DAEMON,
		.words_max = -1,
		.run = ctl_run_config,
	},
	{
		.name = "peers",
		.synopsis = "",
		.summary = "print the members of the daemon's cluster",
		.text = "Prints how the daemon stands with the cluster's etcd, and a line for each member that it "
			"knows, itself included. State: joined; joining, until etcd is first reached; lost: etcd is "
			"not reached, and the members are those that it named last; refused: another daemon has this "
			"one's name. Of a member: serving, draining, or absent: etcd came back without it, and it is "
			"forgotten soon unless it registers again.",
		.exits = "0 joined, 3 not joined or no cluster is configured, " EXITS_DAEMON,
		.run = ctl_run_peers,
	},
	{
		.name = "layouts",
		.synopsis = "",
		.summary = "print the layouts that the daemon knows",
		.text = "Prints what sessions or disks have brought: each layout's id and fields, the bytes of a block, and how many blocks "
			"are in memory, on a disk, and in memory alone (dirty). Two engines share blocks if they have the same id. What it prints "
			"with --json is what --layouts of 'lookup', 'warm' and 'flush' reads. Those open one session over all layouts of the file: "
			"if the daemon serves several models, leave the rows of one in it.",
		.exits = "0 printed, " EXITS_DAEMON,
		.run = ctl_run_layouts,
	},
	{
		.name = "lookup",
		.synopsis = "[--layout ID | --layouts FILE] {KEY... | --tokens FILE}",
		.summary = "tell which blocks are in the cache",
		.text = "For each key, in order, prints in which layouts its block is stored and how long "
			"the prefix is that a sequence with those keys would find. It is a probe: it counts "
			"as no use and protects nothing.\n"
			"A KEY is 2 to 128 hex digits, as engines log it and 'inspect' prints it. With "
			"--tokens the keys are made by terrace_chain_hash() from token ids, for engines "
			"that use it: whole blocks of --block-tokens tokens, the rest of the file is left.\n"
			"Without --layouts the answer is that of the daemon's index, one key after the "
			"other, over every layout there is (or --layout), and the prefix ends before the "
			"first key that is in none. With --layouts it is what an engine with a session over "
			"those layouts is told: the prefix that is valid in all of them, windows counted "
			"in. FILE is JSON: what 'terracectl layouts --json' or 'inspect --json' prints, or one layout or an array of them, each with "
			"the fields of Layout in terrace.proto (fingerprint in hex, formats by name). "
			"Of a hybrid model's session the layouts say their rules too (keep_last, "
			"partial, sparse), and the object with the array of them says unit_tokens: "
			"{\"unit_tokens\": 16, \"layouts\": [...]}. --tokens are then cut into units.\n"
			"With --layouts each key has a list of cells, one a layout in the file's "
			"order: host, disk or gpu, where the block is; absent; or none, where the "
			"layout can have no block.\n"
			"Examples:\n"
			"  terracectl lookup 5f0c6b1d2e3f405162738495a6b7c8d9\n"
			"  terracectl lookup --tokens prompt.ids --block-tokens 16\n"
			"  terracectl layouts --json > all.json\n"
			"  terracectl lookup --layouts all.json --tokens prompt.ids",
		.exits = "0 all keys are there, or with rules or unit_tokens a prefix of all of them can be "
			 "used, 3 not, " EXITS_DAEMON,
		.words_max = 4096,
		.options = {{"layout", "ID", "look at one layout only: its id, up to 16 hex digits"},
			    {"layouts", "FILE", "open a session over the layouts in this JSON file"},
			    {"tokens", "FILE",
			     "decimal token ids with white space or commas between them; -: standard input"},
			    {"block-tokens", "N",
			     "with --tokens: tokens a block, 16 if not given; with --layouts theirs"},
			    {"salt", "TEXT", "with --tokens: the salt of the chain hash"},
			    {"first-position", "N",
			     "with --layouts and keys: position of the first one in its sequence, in units"}},
		.run = ctl_run_lookup,
	},
	{
		.name = "locate",
		.synopsis = "[--layout ID] [--wait SECONDS] {KEY... | --tokens FILE}",
		.summary = "tell which members of the cluster have blocks",
		.text = "For each key that a member of the cluster has, the daemon included, prints the members, by "
			"what the cluster's directory says. It asks other members for what the daemon does not know. "
			"The directory knows a part of the blocks, and each some seconds after it was stored: "
			"every 16th position of a chain; so a member that has a block at a position has, as a rule, "
			"the blocks before it.\n"
			"The keys are a chain's, from the position that --first-position says. If no segment of the "
			"chain begins there (positions 0, 64, 128, 256, 512, 1024 and every 512 from there), --segment "
			"gives the key at the segment's begin. unknown: how many keys and layouts no member has "
			"answered for in time.",
		.exits = "0 a member has one of them, 3 none is known to, " EXITS_DAEMON,
		.words_max = 4096,
		.options = {{"layout", "ID", "in this layout only: its id; else in all that the daemon knows"},
			    {"tenant", "NAME", "blocks of this tenant; else of the caller's own"},
			    {"wait", "SECONDS", "for other members, 1 if not given"},
			    {"tokens", "FILE", "as of 'lookup'"},
			    {"block-tokens", "N", "with --tokens: tokens a block, 16 if not given"},
			    {"salt", "TEXT", "with --tokens: the salt of the chain hash"},
			    {"first-position", "N", "position of the first key in its sequence, in units"},
			    {"segment", "KEY", "the key that begins the first key's segment"}},
		.run = ctl_run_locate,
	},
	{
		.name = "inspect",
		.synopsis = "[--layout ID] KEY",
		.summary = "print a block's record and check its bytes",
		.text = "Prints, for every layout that has a block under KEY (2 to 128 hex digits): state, "
			"place, generation, pins, what it is in its sequence, its use, its layout, and "
			"whether its checksums, recomputed now, match.",
		.exits = "0 found and sound, 3 no such block, 4 a checksum does not match, " EXITS_DAEMON,
		.words_min = 1,
		.words_max = 1,
		.options = {{"layout", "ID", "only in this layout: its id, up to 16 hex digits"}},
		.run = ctl_run_inspect,
	},
	{
		.name = "explain",
		.synopsis = "[--layout ID] [--session N] KEY",
		.summary = "tell why a block is where it is, or is not",
		.text = "Prints, for every layout that has a block under KEY or remembers that one left: its tier, age and use; "
			"rank, the number of blocks that would leave memory before it (policies lru, sieve and graph; among "
			"the first 4096); the rival, which would go now; and of one that left, which tier, when, why and how long "
			"it had not been used.\n"
			"refused: the policy would not have given it the place that it took, so it goes first. unworthy: no disk is "
			"to have it. ahead: read ahead, and not used yet. regretted: asked for within a minute after it left. kept, "
			"of a copy: why it stays for now: pinned, moving, or only, which on a GPU means that it goes down first, and "
			"on a disk that a faster tier has the block.\n"
			"How many blocks left, why, how old and with how much regret: terracectl stat evictions.",
		.exits = "0 printed, 3 nothing is known of that key, " EXITS_DAEMON,
		.words_min = 1,
		.words_max = 1,
		.options = {{"layout", "ID", "look at one layout only: its id, up to 16 hex digits"},
			    {"session", "N", "look at the layouts of one session only: its public number, as 'terracectl stat session' prints it"}},
		.run = ctl_run_explain,
	},
	{
		.name = "graph",
		.synopsis = "[--dot] KEY",
		.summary = "print what a block is tied to",
		.text = "Prints the edges that lead from the block of KEY in the graph of what is asked for, type by type, the "
			"strongest first: prefix_share to the next block of a chain, temporal to where the conversation's next "
			"request ended, co_attend to chains that a session held at the same time, semantic to blocks with keys "
			"alike, spill_link to its own copies, by tier. Weights halve every half hour. Of a block that is nowhere now only the name is known, a "
			"hash of its key.\n"
			"Example:\n"
			"  terracectl graph --dot 5f0c6b1d2e3f405162738495a6b7c8d9 | dot -Tsvg > graph.svg",
		.exits = "0 printed, 3 it is tied to nothing, " EXITS_DAEMON,
		.words_min = 1,
		.words_max = 1,
		.options = {{"dot", NULL, "print it for Graphviz"}},
		.run = ctl_run_graph,
	},
	{
		.name = "trace",
		.synopsis = "{record [--seconds N] [--max BYTES] NAME | stop}",
		.summary = "record what is asked for, for terrace-replay",
		.text = "Record writes a line a request into a new file NAME in the folder traces of the daemon's data_dir: when it "
			"came, its conversation and its blocks under salted hashes, nothing of its prompt. It ends after a minute "
			"or --seconds, or when it is interrupted, and prints what was recorded. If it was killed, stop ends the "
			"recording. terrace-replay tells how policies would have done.",
		.exits = "0 recorded, " EXITS_DAEMON,
		.words_min = 1,
		.words_max = 2,
		.options = {{"seconds", "N", "how long; without it a minute"},
			    {"max", "BYTES", "drop and count what comes when the file has so many: a number, then KiB, MiB, GiB or nothing"}},
		.run = ctl_run_trace,
	},
	{
		.name = "warm",
		.synopsis = "[--layouts FILE] KEY...",
		.summary = "bring blocks from disk to memory",
		.text = "Brings the blocks of the keys (2 to 128 hex digits each) to memory, in every layout that has them, and "
			"waits for it, a minute at most without --timeout. Nothing is protected: what is brought "
			"may have to leave again. With --layouts the keys are a sequence, and what is brought is the "
			"prefix that an engine with a session over the layouts in FILE would find, as in 'lookup'.",
		.exits = "0 all keys are stored and in memory, 3 some are not, " EXITS_DAEMON,
		.words_min = 1,
		.words_max = 4096,
		.options = {{"layouts", "FILE", "the layouts, as JSON, of one session over all of them"}},
		.run = ctl_run_warm,
	},
	{
		.name = "flush",
		.synopsis = "[--layouts FILE] [KEY]...",
		.summary = "make blocks durable",
		.text = "Returns when the blocks of the keys, or without keys all blocks there are, have been written to a "
			"disk and synced, and the daemon's catalog knows them: they are there after a crash. "
			"A daemon that is stopped in order does this by itself. Without --timeout it waits up to ten minutes "
			"a layout. With tenants, only blocks of the caller's own tenant count.",
		.exits = "0 all durable, 3 some keys are not stored, 1 also if there are no disks or no place on them, "
			 "2 usage, 5 no daemon or no answer in time.",
		.words_max = 4096,
		.options = {{"layouts", "FILE", "only in these layouts: JSON, as for 'lookup'"}},
		.run = ctl_run_flush,
	},
	{
		.name = "compact",
		.synopsis = "[--disk N] [--max BYTES]",
		.summary = "give disk space back",
		.text = "Has the daemon delete slab files whose blocks have room in the others of their kind, and such as are "
			"over the disk's budget after a change of its configuration. Blocks whose only copy was in a file that is "
			"deleted are gone, as if evicted.",
		.exits = "0 done, " EXITS_DAEMON,
		.options = {{"disk", "N", "only this one: its number, from 0, as 'stat' shows it"},
			    {"max", "BYTES",
			     "come down to so many bytes of slab files a disk, at the price of blocks, instead of the budget"}},
		.run = ctl_run_compact,
	},
	{
		.name = "verify",
		.synopsis = "[--rate BYTES] [--rebuild]",
		.summary = "recompute the checksums of all blocks",
		.text = "Has the daemon check every stored block: those in memory, then the copies on disks. Damaged ones "
			"are dropped, so that engines see misses, and counted. On a terminal it shows how far it is. "
			"Interrupted, it stops the daemon's work too, and prints what was checked until then. "
			"Without --timeout it waits up to an hour.\n"
			"The daemon's catalog of its disks is checked at each start, and made anew from the blocks themselves if it is "
			"damaged, or if the daemon is started with '--catalog rebuild'. With --rebuild a running daemon forgets its "
			"catalog and makes it anew from the copies that this call reads.",
		.exits = "0 all sound, 4 damaged blocks were found and dropped, " EXITS_DAEMON " 1 also if interrupted, or if "
			 "copies could not be read, since their disk is slow or has failed.",
		.options =
			{{"rate", "BYTES",
			  "read at most so many bytes a second: a number, or one with KiB, MiB, GiB or TiB"},
			 {"rebuild", NULL, "make the catalog of the disks anew on the way; interrupted, the next start reads all headers"}},
		.run = ctl_run_verify,
	},
	{
		.name = "drain",
		.synopsis = "[--wait SECONDS | --undo]",
		.summary = "stop admitting work and wait for what exists",
		.text = "The daemon admits no more sessions, leases and puts, and its health becomes "
			"NOT_SERVING. The call then waits until leases and reservations have "
			"ended (idle sessions do not count), and says what remained. --undo admits work again.",
		.exits = "0 drained (or admitting again), 3 something remained, " EXITS_DAEMON,
		.options = {{"wait", "SECONDS", "how long to wait for what exists; without it not at all"},
			    {"undo", NULL, "admit work again"}},
		.run = ctl_run_drain,
	},
	{
		.name = "codec",
		.synopsis = "{encode|decode} --format F --dim D [OPTION...] < IN > OUT",
		.summary = "pack or unpack vectors, without a daemon",
		.text = "Encode reads vectors of D little-endian fp16 or bf16 numbers and writes each one packed; "
			"decode does the reverse. A packed vector is its codes in linear order, then its "
			"scale bytes, little-endian:\n"
			"  fp16, bf16  2 bytes a number, no scale (raw16 is fp16)\n"
			"  fp8         one E4M3 byte a number, fp16 scale\n"
			"  int4_pth    low nibble = even element, as vLLM has it; 4 scale bytes: a float32 with\n"
			"              the zero point in its 4 lowest bits\n"
			"  tq4         low nibble = even element, fp16 scale\n"
			"  tq3         a stream of 3-bit fields, low bits first, fp16 scale\n"
			"  tq2         four codes a byte from the low bits up, fp16 scale\n"
			"int4_pth and tq* hold rotated vectors: x times a fixed sign vector, then an "
			"unnormalised Hadamard transform. With --rotated the unpacked side is in that domain: "
			"encode takes vectors that are rotated already, decode leaves them so. The formats "
			"that do not rotate ignore it. --dtype is the model's: int4_pth's rotated vectors are rounded "
			"to it, "
			"as vLLM keeps them, before they become codes.\n"
			"With --rope a vector is a latent of 512 numbers in --format and then a rope part of 64 in "
			"that format, packed one behind the other: 386 bytes of tq4 with a rope part of bf16.\n"
			"Encoding takes NaN as 0 and infinity as the largest finite fp16 (format bf16: bf16), in "
			"every format; decoding "
			"saturates at the dtype's largest. Memory does not grow with the input.\n"
			"Example:\n"
			"  terracectl codec encode --format tq4 --dim 128 < k.f16 > k.tq4",
		.exits =
			"0 done, 1 reading or writing failed or the input ends inside a vector (whole ones are "
			"written), 2 usage.",
		.words_min = 1,
		.words_max = 1,
		.options = {{"format", "F", "fp16 (or raw16), bf16, fp8, int4_pth, tq4, tq3 or tq2"},
			    {"dim", "D", "numbers a vector: 64, 80, 96, 112, 128, 192, 256 or 512"},
			    {"rotated", NULL, "the unpacked side is in the rotated domain"},
			    {"dtype", "T", "of unpacked numbers: fp16 (if not given) or bf16"},
			    {"rope", "F", "a rope part of 64 numbers follows each latent: fp16, bf16 or fp8"}},
		.run = ctl_run_codec,
	},
	{
		.name = "certs",
		.synopsis = "check FILE...",
		.summary = "tell what certificates and keys are, and what is wrong with them, without a daemon",
		.text = "Reads PEM files, as listen_cert, listen_key and listen_ca of terraced name them, or "
			"--tls-cert, --tls-key and --tls-ca of a client, and prints for each certificate and key: its "
			"file; what it is (CA, certificate or key); subject; names (its subjectAltName); the time from "
			"which to which it is valid, in UTC; the ends of a connection that it may be shown by; and what "
			"is wrong, with the next step.\n"
			"The files are judged together, as one end of a connection uses them: a certificate wants a CA "
			"among them, a key its certificate. To see if two ends fit, give the certificate of one with "
			"the CAs of the other.\n"
			"Example:\n"
			"  terracectl certs check node.pem node.key ca.pem",
		.exits = "0 all can be used, 1 printing failed, 2 usage, 3 something is wrong.",
		.words_min = 2,
		.words_max = -1,
		.run = ctl_run_certs,
	},
	{
		.name = "plan",
		.synopsis = "--model FILE --format FORMAT [--memory BYTES] [--disk BYTES] [OPTION]...",
		.summary = "tell what a model takes in memory and on disks, without a daemon",
		.text = "Reads a model's config.json, as Hugging Face's transformers write it, and prints "
			"for each kind of layer the layout that stores it, the bytes of a block and of the "
			"slot that holds one, and for each tier how many tokens it holds if every block of "
			"a sequence is kept.\n"
			"A kind is full (the layers attend to the whole sequence), window, latent (MLA) or "
			"state (Mamba, gated DeltaNet: one state every --state-tokens). A latent of 512 with a "
			"rope part of 64 is packed in --format and --rope. opaque stands in "
			"the place of a format where no packed one has the form: then the bytes are of the "
			"model's own dtype. Known are Llama, Qwen, Mistral, Gemma, DeepSeek V3 and models "
			"of their form, Granite 4, Bamba, Jamba, Nemotron-H and Qwen3-Next.\n"
			"Example:\n"
			"  terracectl plan --model config.json --format tq4 --memory 64GiB --disk 1TiB",
		.exits = "0 printed, 1 the config cannot be read or is of no form that is known, 2 usage.",
		.options = {{"model", "FILE", "the model's config.json"},
			    {"format", "FORMAT", "of packed K, and of V without --v-format"},
			    {"v-format", "FORMAT", "of packed V"},
			    {"rope", "F",
			     "of the 64 numbers behind an MLA model's latent: fp16, bf16 or fp8; else 16 bits"},
			    {"memory", "BYTES", "the daemon's host_bytes: a number, then KiB, MiB, GiB, TiB or nothing"},
			    {"disk", "BYTES", "of all its disks together"},
			    {"block-tokens", "N", "tokens a block, 16 if not given"},
			    {"state-tokens", "N", "tokens from one stored state to the next, 128 blocks if not given"}},
		.run = ctl_run_plan,
	},
	{0},
};
