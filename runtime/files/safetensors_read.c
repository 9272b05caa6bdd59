#include "files/safetensors.h"

#include "base/json.h"
#include "base/text.h"
#include "files/files.h"
#include "files/input.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How the header is read: jansson's tree of a whole header takes some 45 times its size ("[[],[],[],..."), so a header
 * of 100 MB would cost gigabytes. Here the header is cut into the members of its object, found by counting brackets
 * outside of strings; depth is bounded on the way. Each member alone then goes to jansson, which judges it in full, and
 * its tree is gone before the next. What stays is one entry a tensor, no larger than four times its text. */

/* One tensor's text is a hundred bytes. This much allows any shape that means something, and bounds jansson's tree. */
enum { MEMBER_LIMIT = 64 * 1024 };

struct metadata {
    char *key;
    char *value;
};

struct fuse_safetensors {
    struct fuse_input input;
    struct fuse_safetensors_entry *entries; /* in the order of their data; name and shape are one allocation, shape's */
    size_t entry_count;
    size_t entry_capacity;
    const struct fuse_safetensors_entry **by_name;
    struct metadata *metadata; /* sorted by key */
    size_t metadata_count;
    size_t metadata_capacity;
    bool has_metadata;
};

static const struct fuse_safetensors_dtype dtypes[] = {
    {"BOOL", 8}, {"U8", 8},      {"I8", 8},          {"F8_E4M3", 8},     {"F8_E5M2", 8}, {"F8_E8M0", 8},
    {"F4", 4},   {"F6_E2M3", 6}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E3M2", 6}, {"I16", 16},
    {"U16", 16}, {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
    {"C64", 64}, {"F64", 64},    {"I64", 64},        {"U64", 64},
};

const struct fuse_safetensors_dtype *fuse_safetensors_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

/* ---- messages -------------------------------------------------------------------------------------------------- */

static int bad_file(const struct fuse_safetensors *file, struct fuse_error *error, const char *what)
{
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "'%s' is not a valid .safetensors file: %s",
                     fuse_shown_path(file->input.path), what);
}

static int bad_json(const struct fuse_safetensors *file, struct fuse_error *error, const char *what)
{
    char shown[FUSE_SHOWN_BYTES];
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL,
                     "'%s' is not a valid .safetensors file: its header is not JSON: %s",
                     fuse_shown_path(file->input.path), fuse_shown(what, strlen(what), shown));
}

static int bad_tensor(const struct fuse_safetensors *file, struct fuse_error *error, const char *name, const char *what)
{
    char shown[FUSE_SHOWN_BYTES];
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "'%s': tensor '%s': %s", fuse_shown_path(file->input.path),
                     fuse_shown(name, strlen(name), shown), what);
}

/* A member that jansson has not seen yet is named by its raw text, up to the closing quote. */
static int bad_member(const struct fuse_safetensors *file, struct fuse_error *error, const char *text, size_t length,
                      const char *what)
{
    char shown[FUSE_SHOWN_BYTES];
    const char *name = memchr(text, '"', length);
    const char *limit = text + length;
    name = name == NULL ? text : name + 1;
    const char *end = name;
    while (end < limit && *end != '"')
        end += *end == '\\' && end + 1 < limit ? 2 : 1;
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "'%s': tensor '%s': %s", fuse_shown_path(file->input.path),
                     fuse_shown(name, (size_t)(end - name), shown), what);
}

/* ---- members of an object -------------------------------------------------------------------------------------- */

static bool is_space(char byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

/* Walks over one object's text. At `at` stands its `{`, then each `,`, at last its `}`. */
struct walk {
    char *at;
    const char *end;
    char *member; /* between `{` or `,` and the next `,` or `}` */
    size_t length;
    int depth;      /* the deepest bracket inside the member */
    bool has_minus; /* outside of strings */
};

/* The next member: 1, or 0 after the last, or -1 if the brackets do not match. Text is modified by none of this. */
static int walk_next(struct walk *walk)
{
    char *at = walk->at + 1;
    int depth = 0;
    bool in_string = false;
    walk->member = at;
    walk->depth = 0;
    walk->has_minus = false;
    for (; at < walk->end; at++) {
        const char byte = *at;
        if (in_string) {
            if (byte == '\\')
                at++;
            else if (byte == '"')
                in_string = false;
            continue;
        }
        if (byte == '"')
            in_string = true;
        else if (byte == '-')
            walk->has_minus = true;
        else if (byte == '{' || byte == '[') {
            depth++;
            walk->depth = depth > walk->depth ? depth : walk->depth;
        } else if (depth == 0 && (byte == ',' || byte == '}'))
            break;
        else if (byte == '}' || byte == ']')
            depth--;
        if (depth < 0)
            return -1;
    }
    if (at >= walk->end)
        return -1;
    const bool is_first = *walk->at == '{';
    walk->at = at;
    walk->length = (size_t)(at - walk->member);
    if (*at == ',')
        return 1;
    /* Before `}` a member may be absent only if the object is empty; a trailing comma leaves an empty text to jansson.
     */
    size_t spaces = 0;
    while (spaces < walk->length && is_space(walk->member[spaces]))
        spaces++;
    return !is_first || spaces < walk->length ? 1 : 0;
}

/* One call of jansson. */
struct parsing {
    const char *text;
    size_t length;
    json_t *object;
    json_error_t problem;
    bool lacks_memory;
};

static void parse(void *user)
{
    struct parsing *parsing = user;
    parsing->object = json_loadb(parsing->text, parsing->length, JSON_REJECT_DUPLICATES, &parsing->problem);
}

/* jansson's tree of the member that the walk stands at, as an object of one key. The separators on both sides turn into
 * braces for the call, so nothing is copied. NULL: *problem says what is wrong, or memory is short. */
static json_t *walk_parse(struct walk *walk, char before, struct parsing *parsing)
{
    char *const open = walk->member - 1, *const close = walk->at;
    const char after = *close;
    *open = '{';
    *close = '}';
    *parsing = (struct parsing){.text = open, .length = walk->length + 2};
    parsing->lacks_memory = !fuse_json_try(parse, parsing);
    *open = before;
    *close = after;
    if (parsing->lacks_memory)
        return NULL;
    json_t *object = parsing->object;
    if (object != NULL && json_object_size(object) != 1) {
        json_decref(object);
        object = NULL;
        strcpy(parsing->problem.text, "a member is missing between two separators");
    }
    return object;
}

/* ---- what members say ------------------------------------------------------------------------------------------ */

static void *grow(void *array, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return array;
    const size_t wanted = *capacity == 0 ? 16 : *capacity * 2;
    void *grown = wanted > SIZE_MAX / size ? NULL : realloc(array, wanted * size);
    if (grown != NULL)
        *capacity = wanted;
    return grown;
}

static int add_metadata(struct fuse_safetensors *file, const char *key, const char *value, struct fuse_error *error)
{
    struct metadata *grown = grow(file->metadata, file->metadata_count, &file->metadata_capacity, sizeof *grown);
    if (grown == NULL)
        return fuse_fail_memory(error, "a file's metadata", file->metadata_count * sizeof *grown);
    file->metadata = grown;
    struct metadata *pair = &grown[file->metadata_count++];
    pair->key = fuse_strdup(key);
    pair->value = fuse_strdup(value);
    if (pair->key == NULL || pair->value == NULL)
        return fuse_fail_memory(error, "a file's metadata", strlen(value));
    return FUSERUN_OK;
}

static int read_metadata(struct fuse_safetensors *file, char *text, const char *end, struct fuse_error *error)
{
    static const char wrong[] = "'__metadata__' must be an object whose values are strings";
    struct walk walk = {.at = text, .end = end};
    char before = '{';
    int found;
    while ((found = walk_next(&walk)) > 0) {
        if (walk.depth > 0)
            return bad_file(file, error, wrong);
        struct parsing parsing;
        json_t *member = walk_parse(&walk, before, &parsing);
        if (member == NULL)
            return parsing.lacks_memory ? fuse_fail_memory(error, "a file's metadata", walk.length)
                                        : bad_json(file, error, parsing.problem.text);
        void *at = json_object_iter(member);
        const char *value = json_string_value(json_object_iter_value(at));
        const int status =
            value == NULL ? bad_file(file, error, wrong) : add_metadata(file, json_object_iter_key(at), value, error);
        json_decref(member);
        FUSE_TRY(status);
        before = *walk.at;
        if (before == '}')
            break;
    }
    /* Whatever stands behind the closing brace belongs to the member, and only space may. */
    for (const char *rest = walk.at + 1; found >= 0 && rest < end; rest++)
        if (!is_space(*rest))
            return bad_file(file, error, wrong);
    return found < 0 ? bad_file(file, error, wrong) : FUSERUN_OK;
}

/* An array of numbers >= 0 into values (count of them). False if an element is anything else. */
static bool read_integers(const json_t *array, uint64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *element = json_array_get(array, i);
        if (!json_is_integer(element) || json_integer_value(element) < 0)
            return false;
        values[i] = (uint64_t)json_integer_value(element);
    }
    return true;
}

static int add_tensor(struct fuse_safetensors *file, const char *name, const json_t *value, struct fuse_error *error)
{
    const json_t *dtype_text = json_object_get(value, "dtype"), *shape = json_object_get(value, "shape");
    const json_t *offsets = json_object_get(value, "data_offsets");
    uint64_t range[2];
    char what[160];

    if (!json_is_object(value))
        return bad_tensor(file, error, name, "its entry is not an object");
    if (!json_is_string(dtype_text) || !json_is_array(shape) || !json_is_array(offsets) || json_object_size(value) != 3)
        return bad_tensor(
            file, error, name,
            "its entry must have 'dtype' (a string), 'shape' and 'data_offsets' (arrays) and nothing else");
    const struct fuse_safetensors_dtype *dtype = fuse_safetensors_dtype(json_string_value(dtype_text));
    if (dtype == NULL) {
        char shown[FUSE_SHOWN_BYTES];
        const char *text = json_string_value(dtype_text);
        (void)snprintf(what, sizeof what, "unknown dtype '%s'", fuse_shown(text, strlen(text), shown));
        return bad_tensor(file, error, name, what);
    }
    if (json_array_size(offsets) != 2 || !read_integers(offsets, range, 2) || range[0] > range[1])
        return bad_tensor(file, error, name, "'data_offsets' must be two integers, the first not above the second");

    struct fuse_safetensors_entry *grown = grow(file->entries, file->entry_count, &file->entry_capacity, sizeof *grown);
    if (grown == NULL)
        return fuse_fail_memory(error, "a file's list of tensors", file->entry_count * sizeof *grown);
    file->entries = grown;
    const size_t rank = json_array_size(shape), name_bytes = strlen(name) + 1;
    uint64_t *dimensions = malloc(rank * sizeof *dimensions + name_bytes);
    if (dimensions == NULL)
        return fuse_fail_memory(error, "a tensor's shape", rank * sizeof *dimensions + name_bytes);
    char *copy = memcpy(dimensions + rank, name, name_bytes);
    struct fuse_safetensors_entry *entry = &grown[file->entry_count++];
    *entry = (struct fuse_safetensors_entry){
        .struct_size = FUSERUN_STRUCT_SIZE(fuse_safetensors_entry, byte_count),
        .rank = (uint32_t)rank,
        .name = copy,
        .dtype = dtype->name,
        .shape = dimensions,
        .element_count = 1,
        .offset = range[0],
        .byte_count = range[1] - range[0],
    };
    if (!read_integers(shape, dimensions, rank))
        return bad_tensor(file, error, name, "'shape' must be a list of integers >= 0");
    uint64_t bits;
    bool overflows = false;
    for (size_t i = 0; i < rank; i++)
        overflows |= __builtin_mul_overflow(entry->element_count, dimensions[i], &entry->element_count);
    if (overflows || __builtin_mul_overflow(entry->element_count, (uint64_t)dtype->bits, &bits))
        return bad_tensor(file, error, name, "the product of its 'shape' does not fit into 64 bits");
    if (bits % 8 != 0 || bits / 8 != entry->byte_count) {
        (void)snprintf(what, sizeof what, "its 'shape' of %s takes %llu%s bytes, its 'data_offsets' span %llu",
                       dtype->name, (unsigned long long)(bits / 8), bits % 8 != 0 ? " and a fraction" : "",
                       (unsigned long long)entry->byte_count);
        return bad_tensor(file, error, name, what);
    }
    return FUSERUN_OK;
}

static int read_member(struct fuse_safetensors *file, struct walk *walk, char before, struct fuse_error *error)
{
    static const char metadata_name[] = "\"" FUSE_SAFETENSORS_METADATA "\"";
    const size_t name_bytes = sizeof metadata_name - 1;
    char *text = walk->member, *const end = walk->at;
    while (text < end && is_space(*text))
        text++;
    if ((size_t)(end - text) > name_bytes && memcmp(text, metadata_name, name_bytes) == 0) {
        char *colon = text + name_bytes;
        while (colon < end && is_space(*colon))
            colon++;
        char *value = colon + (colon < end);
        while (value < end && is_space(*value))
            value++;
        if (colon >= end || *colon != ':' || value >= end || *value != '{')
            return bad_file(file, error, "'__metadata__' must be an object whose values are strings");
        if (file->has_metadata)
            return bad_file(file, error, "'__metadata__' stands there twice");
        file->has_metadata = true;
        return read_metadata(file, value, end, error);
    }
    if (walk->length > MEMBER_LIMIT)
        return bad_member(file, error, walk->member, walk->length, "its entry in the header is longer than 64 KiB");
    if (walk->depth > 2)
        return bad_member(file, error, walk->member, walk->length, "its entry in the header is nested too deeply");
    if (walk->has_minus) /* also -0, which JSON takes for an integer */
        return bad_member(file, error, walk->member, walk->length, "its entry in the header holds a minus sign");
    struct parsing parsing;
    json_t *member = walk_parse(walk, before, &parsing);
    if (member == NULL && parsing.lacks_memory)
        return fuse_fail_memory(error, "a file's header", walk->length);
    if (member == NULL) {
        char what[FUSE_SHOWN_BYTES + 40], shown[FUSE_SHOWN_BYTES];
        (void)snprintf(what, sizeof what, "its entry in the header is not JSON: %s",
                       fuse_shown(parsing.problem.text, strlen(parsing.problem.text), shown));
        return bad_member(file, error, walk->member, walk->length, what);
    }
    void *at = json_object_iter(member);
    const char *name = json_object_iter_key(at);
    /* Spelled with escapes it would pass as a tensor here and as metadata elsewhere. */
    const int status = strcmp(name, FUSE_SAFETENSORS_METADATA) == 0
                           ? bad_file(file, error, "'__metadata__' is spelled with escapes")
                           : add_tensor(file, name, json_object_iter_value(at), error);
    json_decref(member);
    return status;
}

/* ---- checks over all of them ----------------------------------------------------------------------------------- */

static int compare_data(const void *a, const void *b)
{
    const struct fuse_safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->byte_count != y->byte_count)
        return x->byte_count < y->byte_count ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct fuse_safetensors_entry *const *)a)->name,
                  (*(const struct fuse_safetensors_entry *const *)b)->name);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct metadata *)a)->key, ((const struct metadata *)b)->key);
}

/* Order, uniqueness, and data that fills [0, data_bytes) without hole or overlap. */
static int check_all(struct fuse_safetensors *file, uint64_t data_start, uint64_t data_bytes, struct fuse_error *error)
{
    uint64_t next = 0;
    if (file->metadata_count > 1)
        qsort(file->metadata, file->metadata_count, sizeof *file->metadata, compare_keys);
    for (size_t i = 1; i < file->metadata_count; i++)
        if (strcmp(file->metadata[i - 1].key, file->metadata[i].key) == 0)
            return bad_file(file, error, "a key of '__metadata__' stands there twice");
    if (file->entry_count > 1)
        qsort(file->entries, file->entry_count, sizeof *file->entries, compare_data);
    for (size_t i = 0; i < file->entry_count; i++) {
        struct fuse_safetensors_entry *entry = &file->entries[i];
        if (entry->offset != next)
            return bad_tensor(file, error, entry->name,
                              entry->offset < next ? "its data overlaps another tensor's"
                                                   : "there is a hole in the data before it");
        if (entry->byte_count > data_bytes - next)
            return bad_tensor(file, error, entry->name, "its data reaches past the end of the file");
        next += entry->byte_count;
        entry->offset += data_start;
    }
    if (next != data_bytes)
        return bad_file(file, error, "bytes are left over behind the last tensor");
    file->by_name = malloc((file->entry_count + 1) * sizeof *file->by_name);
    if (file->by_name == NULL)
        return fuse_fail_memory(error, "a file's list of tensors", file->entry_count * sizeof *file->by_name);
    for (size_t i = 0; i < file->entry_count; i++)
        file->by_name[i] = &file->entries[i];
    qsort(file->by_name, file->entry_count, sizeof *file->by_name, compare_names);
    for (size_t i = 1; i < file->entry_count; i++)
        if (strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) == 0)
            return bad_tensor(file, error, file->by_name[i]->name, "this name stands in the header twice");
    return FUSERUN_OK;
}

static int read_header(struct fuse_safetensors *file, char *header, size_t length, struct fuse_error *error)
{
    const char *const end = header + length;
    while (header < end && is_space(*header))
        header++;
    if (header >= end || *header != '{')
        return bad_file(file, error, "its header does not begin with '{'");
    struct walk walk = {.at = header, .end = end};
    char before = '{';
    int found;
    while ((found = walk_next(&walk)) > 0) {
        FUSE_TRY(read_member(file, &walk, before, error));
        before = *walk.at;
        if (before == '}')
            break;
    }
    if (found < 0)
        return bad_json(file, error, "quotes or brackets do not match");
    for (const char *rest = walk.at + 1; rest < end; rest++)
        if (!is_space(*rest))
            return bad_json(file, error, "text follows the closing '}'");
    return FUSERUN_OK;
}

/* ---- the public calls ------------------------------------------------------------------------------------------ */

int fuse_safetensors_open(const char *path, struct fuse_safetensors **file, struct fuse_error *error)
{
    int status;
    unsigned char prefix[8];
    char *header = NULL;
    *file = NULL;
    struct fuse_safetensors *self = calloc(1, sizeof *self);
    if (self == NULL)
        return fuse_fail_memory(error, "an open file", sizeof *self);
    FUSE_TRY_OUT(fuse_input_open(path, &self->input, error));
    const uint64_t file_bytes = self->input.byte_count;
    if (file_bytes < sizeof prefix)
        FUSE_TRY_OUT(bad_file(self, error, "it is shorter than the 8 bytes of its header's length"));
    FUSE_TRY_OUT(fuse_input_read(&self->input, 0, prefix, sizeof prefix, error));
    uint64_t header_bytes = 0;
    for (size_t i = sizeof prefix; i-- > 0;)
        header_bytes = header_bytes << 8 | prefix[i];
    if (header_bytes > FUSE_SAFETENSORS_HEADER_LIMIT)
        FUSE_TRY_OUT(bad_file(self, error, "its header would be longer than 100,000,000 bytes"));
    if (header_bytes > file_bytes - sizeof prefix)
        FUSE_TRY_OUT(bad_file(self, error, "its header would reach past the end of the file"));
    const uint64_t data_start = sizeof prefix + header_bytes;
    header = malloc((size_t)header_bytes + 1);
    if (header == NULL)
        FUSE_TRY_OUT(fuse_fail_memory(error, "a file's header", (size_t)header_bytes));
    FUSE_TRY_OUT(fuse_input_read(&self->input, sizeof prefix, header, header_bytes, error));
    FUSE_TRY_OUT(read_header(self, header, (size_t)header_bytes, error));
    FUSE_TRY_OUT(check_all(self, data_start, file_bytes - data_start, error));
    *file = self;
    self = NULL;
out:
    free(header);
    fuse_safetensors_close(&self);
    return status;
}

void fuse_safetensors_close(struct fuse_safetensors **file)
{
    struct fuse_safetensors *self = *file;
    if (self == NULL)
        return;
    for (size_t i = 0; i < self->entry_count; i++)
        free((void *)(uintptr_t)self->entries[i].shape);
    for (size_t i = 0; i < self->metadata_count; i++) {
        free(self->metadata[i].key);
        free(self->metadata[i].value);
    }
    fuse_input_close(&self->input);
    free(self->entries);
    free(self->by_name);
    free(self->metadata);
    free(self);
    *file = NULL;
}

size_t fuse_safetensors_count(const struct fuse_safetensors *file)
{
    return file->entry_count;
}

const struct fuse_safetensors_entry *fuse_safetensors_entry(const struct fuse_safetensors *file, size_t index)
{
    return index < file->entry_count ? &file->entries[index] : NULL;
}

const struct fuse_safetensors_entry *fuse_safetensors_find(const struct fuse_safetensors *file, const char *name)
{
    const struct fuse_safetensors_entry key = {.name = name}, *const key_pointer = &key;
    const struct fuse_safetensors_entry *const *found =
        bsearch(&key_pointer, file->by_name, file->entry_count, sizeof *file->by_name, compare_names);
    return found == NULL ? NULL : *found;
}

const char *fuse_safetensors_metadata(const struct fuse_safetensors *file, const char *key)
{
    const struct metadata wanted = {.key = (char *)(uintptr_t)key};
    const struct metadata *found = file->metadata_count == 0 ? NULL
                                                             : bsearch(&wanted, file->metadata, file->metadata_count,
                                                                       sizeof *file->metadata, compare_keys);
    return found == NULL ? NULL : found->value;
}

int fuse_safetensors_read(const struct fuse_safetensors *file, const struct fuse_safetensors_entry *entry,
                          uint64_t offset, void *bytes, uint64_t byte_count, struct fuse_error *error)
{
    if (offset > entry->byte_count || byte_count > entry->byte_count - offset)
        return bad_tensor(file, error, entry->name, "a read reaches past its end");
    return fuse_input_read(&file->input, entry->offset + offset, bytes, byte_count, error);
}

int fuse_safetensors_read_file(const struct fuse_safetensors *file, uint64_t offset, void *bytes, uint64_t byte_count,
                               struct fuse_error *error)
{
    return fuse_input_read(&file->input, offset, bytes, byte_count, error);
}

const char *fuse_safetensors_path(const struct fuse_safetensors *file)
{
    return file->input.path;
}
