/* jansson when memory is short. It tells a lack of memory as it tells a mistake in the text, 2.14 may go on with a
 * string that is cut, or end the process in an assertion. So it never sees an allocation fail: the work is left
 * instead. */
#ifndef FUSE_BASE_JSON_H
#define FUSE_BASE_JSON_H

#include <stdbool.h>

/* Calls work(user), which is to consist of jansson's calls alone: it may be left in the middle of any of them. False
 * when memory was short: all that it allocated is freed again, and what it set is not to be read. */
bool fuse_json_try(void (*work)(void *user), void *user);

#endif
