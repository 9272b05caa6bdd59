/* Numbers to and from text, in the C locale whatever the environment's. */
#ifndef FUSE_BASE_NUMBER_H
#define FUSE_BASE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

#define FUSE_NUMBER_CHARS 32

bool fuse_number_is_finite(double value);

/* The whole of `text` must be the number (no space around it). Decimal and exponent forms, `inf`, `-inf`; no
 * hexadecimal, no `nan`. False otherwise, and for integers that do not fit. */
bool fuse_number_parse(const char *text, double *value);
bool fuse_integer_parse(const char *text, int64_t *value);

/* The digits that a size or span begins with; *unit is what follows them and blanks. */
bool fuse_count_parse(const char *text, int64_t *count, const char **unit);
/* Bytes: `4096`, `64KiB`, up to TiB. */
bool fuse_size_parse(const char *text, int64_t *bytes);

/* The shortest decimal that reads back as the same double, in buffer; returns buffer. */
const char *fuse_number_format(double value, char buffer[FUSE_NUMBER_CHARS]);

#endif
