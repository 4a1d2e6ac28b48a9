/* The numbers as text. */
#include "eviction/replay/report.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 460, LEFT = 60, RIGHT = 150, TOP = 30, BOTTOM = 50 };

static double hit_rate(const struct row *r)
{
	return replay_hit_tokens(&r->result);
}

static double saved_cost(const struct row *r)
{
	return replay_saved_cost(&r->result);
}

static double gap(const struct row *r)
{
	return r->gap;
}

static double gain(const struct row *r)
{
	return r->gain;
}

static void table(FILE *f, const struct options *o, const struct row *rows, const char *title, double (*value)(const struct row *))
{
	fprintf(f, "%s\n%-14s", title, "");
	for (uint32_t s = 0; s < o->size_count; s++)
		fprintf(f, " %6.3g %%", 100 * o->sizes[s]);
	for (uint32_t p = 0; p < o->policy_count; p++) {
		fprintf(f, "\n%-14s", o->policies[p]);
		for (uint32_t s = 0; s < o->size_count; s++)
			fprintf(f, " %8.2f", value(&rows[p * o->size_count + s]));
	}
	fputc('\n', f);
}

void report_table(FILE *f, const struct options *o, const struct row *rows)
{
	table(f, o, rows, "token-weighted prefix hit rate, %", hit_rate);
	if (o->growth)
		table(f, o, rows, "share of the cost of computing that is saved, %", saved_cost);
	if (!o->offline)
		return;
	table(f, o, rows, "share of the gap from lru to opt that is closed, %", gap);
	table(f, o, rows, "what graph gains over lru, in % of what this gains", gain);
}

/* The policy's rate at that size. */
static double rate_of(const struct options *o, const struct row *rows, const char *policy, uint32_t size)
{
	for (uint32_t p = 0; p < o->policy_count; p++)
		if (strcmp(o->policies[p], policy) == 0)
			return hit_rate(&rows[p * o->size_count + size]);
	return 0;
}

void report_compare(const struct options *o, struct row *rows)
{
	for (uint32_t i = 0; i < o->policy_count * o->size_count; i++) {
		uint32_t size = i % o->size_count;
		double lru = rate_of(o, rows, "lru", size), opt = rate_of(o, rows, "opt", size);
		double own = hit_rate(&rows[i]) - lru;

		rows[i].gap = opt > lru ? 100 * own / (opt - lru) : 0;
		rows[i].gain = own > 0 ? 100 * (rate_of(o, rows, "graph", size) - lru) / own : 0;
	}
}

void report_json(FILE *f, const struct options *o, const struct row *r)
{
	const struct replay_result *x = &r->result;

	fprintf(f, "{\"policy\": \"%s\", \"size\": %.9g, \"hit_tokens\": %.4f, \"hit_blocks\": %.4f, \"saved_cost\": %.4f, ", r->policy, r->size,
		replay_hit_tokens(x), replay_hit_blocks(x), replay_saved_cost(x));
	if (o->offline)
		fprintf(f, "\"gap\": %.2f, \"gain_of_graph\": %.2f, ", r->gap, r->gain);
	fprintf(f, "\"capacity\": %llu, \"requests\": %llu, \"evicted\": %llu, \"refused\": %llu, \"seconds\": %.3f}\n",
		(unsigned long long)r->capacity, (unsigned long long)x->requests, (unsigned long long)x->evicted,
		(unsigned long long)x->refused, r->seconds);
	fflush(f);
}

void report_csv(FILE *f, const struct options *o, const struct row *rows)
{
	fprintf(f, "policy,size,capacity,hit_tokens,hit_blocks,requests,evicted,refused%s,saved_cost\n", o->offline ? ",gap,gain_of_graph" : "");
	for (uint32_t i = 0; i < o->policy_count * o->size_count; i++) {
		const struct row *r = &rows[i];

		fprintf(f, "%s,%.9g,%llu,%.4f,%.4f,%llu,%llu,%llu", r->policy, r->size, (unsigned long long)r->capacity,
			replay_hit_tokens(&r->result), replay_hit_blocks(&r->result),
			(unsigned long long)r->result.requests, (unsigned long long)r->result.evicted,
			(unsigned long long)r->result.refused);
		if (o->offline)
			fprintf(f, ",%.2f,%.2f", r->gap, r->gain);
		fprintf(f, ",%.4f\n", replay_saved_cost(&r->result));
	}
}

/* ---- drawing ---- */

struct axes {
	double left, right;  /* log10 of the sizes */
	double top;          /* hit rate */
};

static double x_of(const struct axes *a, double size)
{
	double span = a->right > a->left ? a->right - a->left : 1;

	return LEFT + (WIDTH - LEFT - RIGHT) * (log10(size) - a->left) / span;
}

static double y_of(const struct axes *a, double rate)
{
	return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / a->top;
}

static void draw_axes(FILE *f, const struct axes *a, const struct options *o)
{
	for (int i = 0; i <= 5; i++) {
		double rate = a->top * i / 5;

		fprintf(f, "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.0f %%</text>\n",
			LEFT, y_of(a, rate), WIDTH - RIGHT, LEFT - 6, y_of(a, rate) + 4, rate);
	}
	for (uint32_t s = 0; s < o->size_count; s++)
		fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.3g %%</text>\n", x_of(a, o->sizes[s]),
			HEIGHT - BOTTOM + 18, 100 * o->sizes[s]);
	fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">cache, share of unique blocks</text>\n",
		(LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12);
	fprintf(f, "<text x=\"%d\" y=\"%d\">tokens of prompts that hit</text>\n", LEFT, TOP - 12);
}

static void draw_policy(FILE *f, const struct axes *a, const struct options *o, const struct row *rows, uint32_t p)
{
	double hue = 360.0 * p / o->policy_count;

	fprintf(f, "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"hsl(%.0f,70%%,45%%)\" points=\"", hue);
	for (uint32_t s = 0; s < o->size_count; s++)
		fprintf(f, "%.1f,%.1f ", x_of(a, rows[s].size), y_of(a, replay_hit_tokens(&rows[s].result)));
	fprintf(f, "\"/>\n<text x=\"%d\" y=\"%u\" fill=\"hsl(%.0f,70%%,35%%)\">%s</text>\n", WIDTH - RIGHT + 12, TOP + 18 * p + 10,
		hue, rows[0].policy);
}

void report_svg(FILE *f, const struct options *o, const struct row *rows)
{
	struct axes a = { INFINITY, -INFINITY, 5 };

	for (uint32_t s = 0; s < o->size_count; s++) {
		a.left = fmin(a.left, log10(o->sizes[s]));
		a.right = fmax(a.right, log10(o->sizes[s]));
	}
	for (uint32_t i = 0; i < o->policy_count * o->size_count; i++)
		a.top = fmax(a.top, 5 * ceil(replay_hit_tokens(&rows[i].result) / 5));
	fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
		   "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n", WIDTH, HEIGHT);
	draw_axes(f, &a, o);
	for (uint32_t p = 0; p < o->policy_count; p++)
		draw_policy(f, &a, o, rows + p * o->size_count, p);
	fprintf(f, "</svg>\n");
}
