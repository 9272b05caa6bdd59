# A source as a C string literal, without its #include lines.
/^#include/d
s/\\/\\\\/g
s/"/\\"/g
s/^/"/
s/$/\\n"/
