/* Whole files: what is on disk after success, after a failure, and on the way. */
#include "files/files.h"
#include "files/output.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <signal.h>
#include <unistd.h>

/* Stands in for the C library's: with most_bytes set it takes no more than that, and every other call is interrupted.
 */
static size_t most_bytes, write_calls;

ssize_t write(int descriptor, const void *bytes, size_t count)
{
    if (most_bytes > 0 && write_calls++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return (ssize_t)syscall(SYS_write, descriptor, bytes, most_bytes > 0 && count > most_bytes ? most_bytes : count);
}

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/fuserun-output-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static const char *in_folder(const char *name)
{
    static char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Files in the folder; *only: the name of one of them. */
static size_t count_files(char only[256])
{
    size_t count = 0;
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            count++;
            (void)snprintf(only, 256, "%s", entry->d_name);
        }
    (void)closedir(entries);
    return count;
}

static int remove_folder(void **state)
{
    (void)state;
    char name[256];
    while (count_files(name) > 0)
        assert_int_equal(remove(in_folder(name)), 0);
    return rmdir(folder);
}

static void check_content(const char *path, const char *content, size_t length)
{
    char *read_back = malloc(length + 1);
    assert_non_null(read_back);
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    assert_int_equal(fread(read_back, 1, length + 1, stream), length);
    assert_memory_equal(read_back, content, length);
    (void)fclose(stream);
    free(read_back);
}

static void test_name_appears_only_at_commit(void **state)
{
    (void)state;
    struct fuse_output *output = NULL;
    char name[256];
    assert_int_equal(fuse_output_text(in_folder("model"), "old", 3, NULL), FUSERUN_OK);
    assert_int_equal(fuse_output_open(in_folder("model"), &output, NULL), FUSERUN_OK);
    assert_int_equal(fuse_output_write(output, "new text", 8, NULL), FUSERUN_OK);
    check_content(in_folder("model"), "old", 3);
    assert_int_equal(count_files(name), 2);
    assert_int_equal(fuse_output_commit(&output, NULL), FUSERUN_OK);
    assert_null(output);
    check_content(in_folder("model"), "new text", 8);
    assert_int_equal(count_files(name), 1);
}

static void test_abandon_leaves_nothing(void **state)
{
    (void)state;
    struct fuse_output *output = NULL;
    char name[256];
    assert_int_equal(fuse_output_open(in_folder("model"), &output, NULL), FUSERUN_OK);
    assert_int_equal(count_files(name), 1); /* in the same folder, or the rename could not be atomic */
    fuse_output_abandon(&output);
    assert_null(output);
    fuse_output_abandon(&output);
    assert_int_equal(count_files(name), 0);
}

static void test_two_at_once_do_not_meet(void **state)
{
    (void)state;
    struct fuse_output *a = NULL, *b = NULL;
    assert_int_equal(fuse_output_open(in_folder("model"), &a, NULL), FUSERUN_OK);
    assert_int_equal(fuse_output_open(in_folder("model"), &b, NULL), FUSERUN_OK);
    assert_int_equal(fuse_output_write(a, "aaa", 3, NULL), FUSERUN_OK);
    assert_int_equal(fuse_output_write(b, "b", 1, NULL), FUSERUN_OK);
    assert_int_equal(fuse_output_commit(&a, NULL), FUSERUN_OK);
    check_content(in_folder("model"), "aaa", 3);
    assert_int_equal(fuse_output_commit(&b, NULL), FUSERUN_OK);
    check_content(in_folder("model"), "b", 1);
}

/* Pieces around the buffer's size, in one file: nothing lost, nothing out of order. */
static void test_pieces_of_any_size(void **state)
{
    (void)state;
    static const size_t pieces[] = {1, 262143, 1, 262144, 7, 300000, 0, 262144 * 3, 5, 1000};
    size_t total = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
        total += pieces[i];
    char *content = malloc(total);
    assert_non_null(content);
    for (size_t i = 0; i < total; i++)
        content[i] = (char)(i * 2654435761u >> 13);
    struct fuse_output *output = NULL;
    assert_int_equal(fuse_output_open(in_folder("pieces"), &output, NULL), FUSERUN_OK);
    for (size_t i = 0, at = 0; i < sizeof pieces / sizeof pieces[0]; at += pieces[i++])
        assert_int_equal(fuse_output_write(output, content + at, pieces[i], NULL), FUSERUN_OK);
    assert_int_equal(fuse_output_commit(&output, NULL), FUSERUN_OK);
    check_content(in_folder("pieces"), content, total);
    free(content);
}

static void test_short_and_interrupted_writes(void **state)
{
    (void)state;
    static const char text[] = "twenty bytes of text";
    most_bytes = 7;
    const int status = fuse_output_text(in_folder("model"), text, 20, NULL);
    most_bytes = 0;
    assert_int_equal(status, FUSERUN_OK);
    assert_int_equal(write_calls, 6); /* 7, 7 and 6 bytes, each after an interruption */
    check_content(in_folder("model"), text, 20);
}

static void test_mode_follows_umask(void **state)
{
    (void)state;
    struct stat found;
    static const struct {
        mode_t mask, mode;
    } cases[] = {{0, 0644}, {022, 0644}, {077, 0600}};
    for (size_t i = 0; i < 3; i++) {
        const mode_t before = umask(cases[i].mask);
        assert_int_equal(fuse_output_text(in_folder("mode"), "x", 1, NULL), FUSERUN_OK);
        (void)umask(before);
        assert_int_equal(stat(in_folder("mode"), &found), 0);
        assert_int_equal(found.st_mode & 0777, cases[i].mode);
    }
}

static void test_descriptor_closes_on_exec(void **state)
{
    (void)state;
    struct fuse_output *output = NULL;
    const int next = dup(0);
    assert_true(next >= 0);
    (void)close(next);
    assert_int_equal(fuse_output_open(in_folder("exec"), &output, NULL), FUSERUN_OK);
    assert_true((fcntl(next, F_GETFD) & FD_CLOEXEC) != 0); /* the lowest free descriptor is the one it got */
    fuse_output_abandon(&output);
}

static void check_error(const char *path, const char *expected)
{
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_output_text(path, "x", 1, &error), FUSERUN_ERROR_IO);
    assert_non_null(strstr(error.text, path));
    assert_non_null(strstr(error.text, expected));
}

static void test_errors_name_path_and_reason(void **state)
{
    (void)state;
    char name[256];
    check_error(in_folder("absent/model"), "No such file or directory");
    assert_int_equal(mkdir(in_folder("sub"), 0755), 0);
    check_error(in_folder("sub"), "directory"); /* rename over a folder */
    check_error(in_folder("sub/"), "Is a directory");
    check_error("", "No such file");
    assert_int_equal(fuse_output_text(in_folder("plain"), "x", 1, NULL), FUSERUN_OK);
    check_error(in_folder("plain/model"), "Not a directory");
    assert_int_equal(remove(in_folder("plain")), 0);
    assert_int_equal(count_files(name), 1); /* sub: no temporary file is left */
    assert_string_equal(name, "sub");
}

/* A full disk, played by the file size limit: write() takes a part (a short write), then says EFBIG. */
static void test_write_error_is_told_and_cleaned_up(void **state)
{
    (void)state;
    struct rlimit before, small;
    char name[256], *content = calloc(1, 2000000);
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_non_null(content);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1000001;
    void (*old)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const int status = fuse_output_text(in_folder("big"), content, 2000000, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, old);
    free(content);
    assert_int_equal(status, FUSERUN_ERROR_IO);
    assert_non_null(strstr(error.text, "/big': File too large"));
    assert_int_equal(count_files(name), 0);
}

static void test_long_names(void **state)
{
    (void)state;
    char name[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    assert_int_equal(fuse_output_text(in_folder(name), "x", 1, NULL), FUSERUN_OK);
    check_content(in_folder(name), "x", 1);
    assert_int_equal(remove(in_folder(name)), 0);

    /* The reason shows even where the path does not fit. */
    struct fuse_error error = FUSE_ERROR_INIT;
    char path[3000];
    memset(path, 'p', sizeof path);
    path[0] = path[200] = '/';
    path[sizeof path - 1] = '\0';
    assert_int_equal(fuse_output_text(path, "x", 1, &error), FUSERUN_ERROR_IO);
    assert_non_null(strstr(error.text, "No such file or directory"));
}

static void test_make_folders(void **state)
{
    (void)state;
    struct stat found;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_make_folders(in_folder("a/b//c/"), NULL), FUSERUN_OK);
    assert_int_equal(stat(in_folder("a/b/c"), &found), 0);
    assert_true(S_ISDIR(found.st_mode));
    assert_int_equal(fuse_make_folders(in_folder("a/b/c"), NULL), FUSERUN_OK);
    assert_int_equal(fuse_make_folders("/", NULL), FUSERUN_OK);
    assert_int_equal(fuse_output_text(in_folder("a/file"), "x", 1, NULL), FUSERUN_OK);
    assert_int_equal(fuse_make_folders(in_folder("a/file/d"), &error), FUSERUN_ERROR_IO);
    assert_non_null(strstr(error.text, "/a/file': Not a directory"));
    assert_int_equal(fuse_make_folders("", &error), FUSERUN_ERROR_IO);
    assert_int_equal(remove(in_folder("a/file")), 0);
    assert_int_equal(remove(in_folder("a/b/c")), 0);
    assert_int_equal(remove(in_folder("a/b")), 0);
}

/* What a file says may not command the terminal that it is shown on. */
static void test_text_for_messages(void **state)
{
    (void)state;
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"a\x1b[2Jb\x7f\n", "a?[2Jb??"},
        {"\xc2\x9b"
         "31m \xc2\x85",
         "??31m ??"}, /* C1: CSI, NEL */
        {"\xe2\x80\xae"
         "gpj",
         "???gpj"},                                                          /* right to left from here on */
        {"\xe2\x81\xa6x\xe2\x81\xa9 \xe2\x80\x8f\xd8\x9c", "???x??? ?????"}, /* isolates and marks */
        {"\xe2\x80\xa8", "???"},                                             /* a line's end */
        {"\xc3\xa9\xc2\xa0\xe2\x82\xac\xe2\x80\x94", "\xc3\xa9\xc2\xa0\xe2\x82\xac\xe2\x80\x94"}, /* none */
        {"\xe2\x80", "\xe2\x80"},                                                                 /* cut short */
    };
    char buffer[FUSE_SHOWN_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(fuse_shown(cases[i].text, strlen(cases[i].text), buffer), cases[i].shown);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    static const struct CMUnitTest tests[] = {
        TEST(test_name_appears_only_at_commit),
        TEST(test_abandon_leaves_nothing),
        TEST(test_two_at_once_do_not_meet),
        TEST(test_pieces_of_any_size),
        TEST(test_short_and_interrupted_writes),
        TEST(test_mode_follows_umask),
        TEST(test_descriptor_closes_on_exec),
        TEST(test_errors_name_path_and_reason),
        TEST(test_write_error_is_told_and_cleaned_up),
        TEST(test_long_names),
        TEST(test_make_folders),
        TEST(test_text_for_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
