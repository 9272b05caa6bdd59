/* Put before every file that clang-tidy looks at. It sees one file at a time, so it would follow calls that fail and
 * return FUSERUN_OK all the same; here it sees that they return their code. */
#include "base/error.h"
#include "files/files.h"

#define fuse_fail(error, code, ...) ((void)fuse_fail(error, code, __VA_ARGS__), (code))
#define fuse_fail_memory(...) ((void)fuse_fail_memory(__VA_ARGS__), FUSERUN_ERROR_MEMORY)
#define fuse_fail_errno(...) ((void)fuse_fail_errno(__VA_ARGS__), FUSERUN_ERROR_IO)
