/* Layouts between their message and struct kv_layout, field by field: the one place that knows both, for the daemon and for clients. */
#ifndef TERRACE_PROTO_LAYOUT_MESSAGE_H
#define TERRACE_PROTO_LAYOUT_MESSAGE_H

#include "terrace.pb-c.h"

#include <stdbool.h>

struct kv_layout;

/* What the message says, whether it makes sense or not: that is for kv_layout_problem to tell. False, *out untouched: the fingerprint is
 * not of KV_FINGERPRINT_BYTES bytes. */
bool layout_message_read(const Terrace__V1__Layout *in, struct kv_layout *out);

/* Fills a message, whose fingerprint points into `in`. */
void layout_message_write(const struct kv_layout *in, Terrace__V1__Layout *out);

#endif
