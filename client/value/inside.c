/* See inside.h. */
#include "client/value/inside.h"

static _Thread_local bool inside;

bool client_after_inside(void)
{
	return inside;
}

void client_after_enter(void)
{
	inside = true;
}
