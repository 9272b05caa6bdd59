#include "files/pth.h"

#include "base/text.h"
#include "files/files.h"
#include "files/input.h"
#include "files/pickle.h"
#include "files/zip.h"

#include <stdlib.h>
#include <string.h>

enum {
    NAMES_LIMIT = 16 << 20,    /* of all names together, and 64 bytes more for each */
    VISIT_LIMIT = 4 << 20,     /* values looked at: shared ones can make a small pickle a huge tree */
    WINDOW_BYTES = 256 * 1024, /* read at once of a tensor that is not contiguous */
    GAP_BYTES = 4096           /* read and thrown away rather than skipped */
};

struct fuse_pth {
    struct fuse_input input;
    struct fuse_zip *zip;
    unsigned char *bytes; /* data.pkl */
    struct fuse_pickle *pickle;
    struct fuse_pth_entry *entries;
    size_t count;
    size_t capacity;
    size_t name_bytes;
    bool is_swapped; /* the file's byte order is not this machine's */
};

/* ---- messages -------------------------------------------------------------------------------------------------- */

static int bad_file(const struct fuse_pth *file, struct fuse_error *error, const char *what)
{
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "'%s' is not a valid .pth file: %s",
                     fuse_shown_path(file->input.path), what);
}

static int bad_tensor(const struct fuse_pth *file, struct fuse_error *error, const char *name, const char *what)
{
    char shown[FUSE_SHOWN_BYTES];
    return fuse_fail(error, FUSERUN_ERROR_FORMAT, NULL, "'%s': tensor '%s': %s", fuse_shown_path(file->input.path),
                     fuse_shown(name, strlen(name), shown), what);
}

/* What is there instead of a zip file. */
static int check_magic(const struct fuse_pth *file, struct fuse_error *error)
{
    unsigned char start[262] = {0};
    const uint64_t bytes = file->input.byte_count < sizeof start ? file->input.byte_count : sizeof start;
    FUSE_TRY(fuse_input_read(&file->input, 0, start, bytes, error));
    if (memcmp(start, "PK\3\4", 4) == 0)
        return FUSERUN_OK;
    const bool is_tar = memcmp(start + 257, "ustar", 5) == 0;
    if (is_tar || start[0] == 0x80)
        return fuse_fail(error, FUSERUN_ERROR_UNSUPPORTED, NULL,
                         "'%s' is in the format that torch.save wrote before PyTorch %s, which is not read here; "
                         "convert it once with PyTorch: python -c \"import torch, sys; torch.save(torch.load("
                         "sys.argv[1], weights_only=%s), sys.argv[2])\" OLD.pth NEW.pth",
                         fuse_shown_path(file->input.path), is_tar ? "0.1.10" : "1.6", is_tar ? "False" : "True");
    return bad_file(file, error, bytes == 0 ? "it is empty" : "it is no zip file, as torch.save writes them");
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* The member `name` of the folder that all are in; NULL: none. */
static const struct fuse_zip_member *find_member(const struct fuse_pth *file, const char *root, size_t root_length,
                                                 const char *name, size_t name_length)
{
    char path[2 * FUSE_ZIP_NAME_LIMIT + 1]; /* a longer one is no member's */
    if (root_length + name_length >= sizeof path || memchr(name, '\0', name_length) != NULL)
        return NULL;
    memcpy(path, root, root_length);
    memcpy(path + root_length, name, name_length);
    path[root_length + name_length] = '\0';
    return fuse_zip_find(file->zip, path);
}

/* The folder's name with its slash: that of the one data.pkl. */
static int find_root(const struct fuse_pth *file, const char **root, size_t *length, struct fuse_error *error)
{
    static const char data[] = "/data.pkl";
    *root = NULL;
    bool is_script = false;
    for (size_t i = 0; i < fuse_zip_count(file->zip); i++) {
        const char *name = fuse_zip_member(file->zip, i)->name, *slash = strchr(name, '/');
        is_script = is_script || (slash != NULL && strcmp(slash, "/constants.pkl") == 0);
        if (slash == NULL || strcmp(slash, data) != 0)
            continue;
        if (*root != NULL)
            return bad_file(file, error, "it holds more than one data.pkl");
        *root = name;
        *length = (size_t)(slash - name) + 1;
    }
    if (*root == NULL)
        return bad_file(file, error, "it holds no data.pkl, so torch.save did not write it");
    if (is_script)
        return bad_file(file, error, "it is a program (torch.jit.save), not weights; save model.state_dict()");
    return FUSERUN_OK;
}

static int read_byte_order(struct fuse_pth *file, const char *root, size_t root_length, struct fuse_error *error)
{
    const uint16_t probe = 1;
    const bool is_little_here = *(const unsigned char *)&probe == 1;
    const struct fuse_zip_member *member = find_member(file, root, root_length, "byteorder", 9);
    char order[8] = "little"; /* files before PyTorch 2.1 do not say */
    if (member != NULL) {
        if (member->byte_count >= sizeof order)
            return bad_file(file, error, "its member 'byteorder' is neither 'little' nor 'big'");
        FUSE_TRY(fuse_input_read(&file->input, member->offset, order, member->byte_count, error));
        order[member->byte_count] = '\0';
    }
    if (strcmp(order, "little") != 0 && strcmp(order, "big") != 0)
        return bad_file(file, error, "its member 'byteorder' is neither 'little' nor 'big'");
    file->is_swapped = is_little_here != (order[0] == 'l');
    return FUSERUN_OK;
}

static int read_pickle(struct fuse_pth *file, const char *root, size_t root_length, struct fuse_error *error)
{
    const struct fuse_zip_member *member = find_member(file, root, root_length, "data.pkl", 8);
    if (member->byte_count > FUSE_PICKLE_BYTE_LIMIT)
        return bad_file(file, error, "its data.pkl is longer than 16 MiB");
    if (member->byte_count == 0)
        return bad_file(file, error, "its data.pkl is empty");
    file->bytes = malloc((size_t)member->byte_count);
    if (file->bytes == NULL)
        return fuse_fail_memory(error, "a file's header", (size_t)member->byte_count);
    FUSE_TRY(fuse_input_read(&file->input, member->offset, file->bytes, member->byte_count, error));
    return fuse_pickle_read(file->input.path, file->bytes, (size_t)member->byte_count, &file->pickle, error);
}

/* ---- choosing the dict ----------------------------------------------------------------------------------------- */

/* Whether tensors are among the values of a dict. */
static bool is_state_dict(const struct fuse_pickle_value *value)
{
    for (uint32_t i = 1; value->kind == FUSE_PICKLE_DICT && i < value->count; i += 2)
        if (value->as.items[i]->kind == FUSE_PICKLE_TENSOR)
            return true;
    return false;
}

static bool is_key(const struct fuse_pickle_value *key, const char *text, size_t length)
{
    return key->kind == FUSE_PICKLE_TEXT && key->count == length && memcmp(key->as.text, text, length) == 0;
}

/* The dict behind the longest first part of `path` that is a key; *used: its length. */
static const struct fuse_pickle_value *find_dict(const struct fuse_pickle_value *dict, const char *path, size_t *used)
{
    for (size_t length = strlen(path); length > 0; length--) {
        if (path[length] != '\0' && path[length] != '.')
            continue;
        for (uint32_t i = 0; dict->kind == FUSE_PICKLE_DICT && i < dict->count; i += 2) {
            if (is_key(dict->as.items[i], path, length) && dict->as.items[i + 1]->kind == FUSE_PICKLE_DICT) {
                *used = length;
                return dict->as.items[i + 1];
            }
        }
    }
    return NULL;
}

/* "'model', 'ema'": the state dicts inside a dict. Returns their number. */
static size_t list_state_dicts(const struct fuse_pickle_value *dict, struct fuse_text *text)
{
    enum { LISTED = 4 };
    size_t count = 0;
    for (uint32_t i = 0; dict->kind == FUSE_PICKLE_DICT && i < dict->count; i += 2) {
        const struct fuse_pickle_value *key = dict->as.items[i];
        char shown[FUSE_SHOWN_BYTES];
        if (key->kind != FUSE_PICKLE_TEXT || !is_state_dict(dict->as.items[i + 1]) || ++count > LISTED)
            continue;
        fuse_text_addf(text, "%s%s", count > 1 ? ", " : "", fuse_shown(key->as.text, key->count, shown));
    }
    return count;
}

static int choose_by_key(const struct fuse_pth *file, const char *weights_key, const struct fuse_pickle_value **chosen,
                         struct fuse_error *error)
{
    const struct fuse_pickle_value *dict = *chosen;
    for (const char *rest = weights_key; dict != NULL;) {
        size_t used = 0;
        dict = find_dict(dict, rest, &used);
        rest += used;
        if (dict != NULL && *rest == '\0') {
            *chosen = dict;
            return FUSERUN_OK;
        }
        rest += *rest == '.';
    }
    struct fuse_text inside = {0};
    const size_t count = list_state_dicts(*chosen, &inside);
    char shown[FUSE_SHOWN_BYTES];
    const int status = fuse_fail(error, FUSERUN_ERROR_CONFIG, "weights_key", "'%s' holds no dict '%s'%s%s",
                                 fuse_shown_path(file->input.path), fuse_shown(weights_key, strlen(weights_key), shown),
                                 count > 0 ? "; of weights it holds: " : " (nor another with weights inside)",
                                 count > 0 ? inside.data : "");
    fuse_text_free(&inside);
    return status;
}

static int choose_state_dict(const struct fuse_pth *file, const char *weights_key,
                             const struct fuse_pickle_value **chosen, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    struct fuse_text inside = {0};
    if (weights_key != NULL)
        FUSE_TRY(choose_by_key(file, weights_key, chosen, error));
    const size_t count = list_state_dicts(*chosen, &inside);
    const char *path = fuse_shown_path(file->input.path), *names = inside.data != NULL ? inside.data : "";
    if (count == 0 && !is_state_dict(*chosen))
        status = fuse_fail(error, FUSERUN_ERROR_FORMAT, weights_key != NULL ? "weights_key" : NULL,
                           "'%s' holds no state dict%s (a dict of names and tensors)", path,
                           weights_key != NULL ? " under this key" : "");
    else if (count == 1 && !is_state_dict(*chosen))
        status = fuse_fail(error, FUSERUN_ERROR_CONFIG, "weights_key",
                           "'%s' holds more than a state dict; to take the one inside set weights_key = %s%s%s", path,
                           weights_key != NULL ? weights_key : "", weights_key != NULL ? "." : "", names);
    else if (count > 1 && !is_state_dict(*chosen))
        status = fuse_fail(error, FUSERUN_ERROR_CONFIG, "weights_key",
                           "'%s' holds several state dicts; weights_key%s must be one of: %s", path,
                           weights_key != NULL ? ", behind what it says already," : "", names);
    fuse_text_free(&inside);
    return status;
}

/* ---- listing --------------------------------------------------------------------------------------------------- */

/* Appends one step of a name. */
static void add_step(struct fuse_text *name, const struct fuse_pickle_value *parent, uint32_t index)
{
    const struct fuse_pickle_value *key = parent->kind == FUSE_PICKLE_DICT ? parent->as.items[index] : NULL;
    if (name->length > 0)
        fuse_text_add(name, ".");
    if (key == NULL)
        fuse_text_addf(name, "%u", (unsigned)index);
    else if (key->kind == FUSE_PICKLE_TEXT) /* cut where the name is too long in any case */
        fuse_text_add_bytes(name, key->as.text,
                            key->count <= FUSE_PTH_NAME_LIMIT ? key->count : FUSE_PTH_NAME_LIMIT + 1);
    else if (key->kind == FUSE_PICKLE_INTEGER)
        fuse_text_addf(name, "%lld", (long long)key->as.integer);
    else /* None, a tuple, ...: by its place */
        fuse_text_addf(name, "?%u", (unsigned)index / 2);
}

/* Where the tensor's storage lies in the file. */
static int place_tensor(const struct fuse_pth *file, const char *root, size_t root_length, const char *name,
                        const struct fuse_pickle_tensor *tensor, struct fuse_pth_entry *entry, struct fuse_error *error)
{
    uint64_t bytes;
    char key[FUSE_ZIP_NAME_LIMIT] = "data/";
    const struct fuse_zip_member *member = NULL;
    if (tensor->storage_length < sizeof key - 5) {
        memcpy(key + 5, tensor->storage, tensor->storage_length);
        member = find_member(file, root, root_length, key, 5 + tensor->storage_length);
    }
    if (member == NULL)
        return bad_tensor(file, error, name, "the member with its data is not in the file");
    const uint32_t each = fuse_safetensors_dtype(tensor->dtype)->bits / 8;
    if (__builtin_mul_overflow(tensor->storage_count, (uint64_t)each, &bytes) || bytes > member->byte_count)
        return bad_tensor(file, error, name, "the member with its data is shorter than its storage");
    uint64_t dense = 1;
    entry->is_contiguous = true;
    for (uint32_t i = tensor->rank; i-- > 0;) {
        entry->is_contiguous = entry->is_contiguous && (tensor->shape[i] == 1 || tensor->stride[i] == dense);
        dense *= tensor->shape[i];
    }
    entry->is_contiguous = entry->is_contiguous || tensor->element_count == 0;
    entry->dtype = tensor->dtype;
    entry->element_bytes = each;
    entry->rank = tensor->rank;
    entry->shape = tensor->shape;
    entry->stride = tensor->stride;
    entry->element_count = tensor->element_count;
    entry->offset = member->offset + tensor->offset * each;
    return FUSERUN_OK;
}

static int add_entry(struct fuse_pth *file, const char *root, size_t root_length, const struct fuse_text *name,
                     const struct fuse_pickle_tensor *tensor, struct fuse_error *error)
{
    if (name->length > FUSE_PTH_NAME_LIMIT || memchr(name->data, '\0', name->length) != NULL ||
        !fuse_is_utf8(name->data, name->length))
        return bad_tensor(file, error, name->data, "its name is longer than 1,024 bytes, or no text");
    file->name_bytes += name->length + 64;
    if (file->name_bytes > NAMES_LIMIT)
        return bad_file(file, error, "the names of its tensors take more than 16 MiB");
    if (file->count == file->capacity) {
        const size_t capacity = file->capacity * 2 > 64 ? file->capacity * 2 : 64;
        struct fuse_pth_entry *grown = realloc(file->entries, capacity * sizeof *grown);
        if (grown == NULL)
            return fuse_fail_memory(error, "a file's list of tensors", capacity * sizeof *grown);
        file->entries = grown;
        file->capacity = capacity;
    }
    struct fuse_pth_entry entry = {0};
    FUSE_TRY(place_tensor(file, root, root_length, name->data, tensor, &entry, error));
    entry.name = fuse_strdup(name->data);
    if (entry.name == NULL)
        return fuse_fail_memory(error, "a file's list of tensors", name->length);
    file->entries[file->count++] = entry;
    return FUSERUN_OK;
}

/* All tensors at or below `top`, depth first; the pickle has no cycles and a bounded depth. */
static int list_tensors(struct fuse_pth *file, const char *root, size_t root_length,
                        const struct fuse_pickle_value *top, struct fuse_error *error)
{
    struct {
        const struct fuse_pickle_value *value;
        uint32_t next;
        size_t name_length;
    } path[FUSE_PICKLE_DEPTH_LIMIT];
    int status = FUSERUN_OK;
    size_t depth = 0, visits = 0;
    struct fuse_text name = {0};
    fuse_text_add(&name, "");
    if (top->kind == FUSE_PICKLE_TENSOR)
        FUSE_TRY_OUT(add_entry(file, root, root_length, &name, top->as.tensor, error));
    path[depth].value = top;
    path[depth].next = 0;
    path[depth++].name_length = 0;
    while (depth > 0) {
        const struct fuse_pickle_value *parent = path[depth - 1].value;
        const bool is_dict = parent->kind == FUSE_PICKLE_DICT;
        const bool has_items = is_dict || parent->kind == FUSE_PICKLE_LIST || parent->kind == FUSE_PICKLE_TUPLE;
        const uint32_t index = path[depth - 1].next;
        if (!has_items || index >= parent->count) {
            depth--;
            continue;
        }
        path[depth - 1].next += is_dict ? 2 : 1;
        if (++visits > VISIT_LIMIT)
            FUSE_TRY_OUT(bad_file(file, error, "its values, counted as often as they are used, are too many"));
        const struct fuse_pickle_value *value = parent->as.items[index + is_dict];
        if (value->kind != FUSE_PICKLE_TENSOR && value->height == 0)
            continue;
        name.length = path[depth - 1].name_length;
        name.data[name.length] = '\0';
        add_step(&name, parent, index);
        if (name.failed)
            FUSE_TRY_OUT(fuse_fail_memory(error, "a tensor's name", name.length));
        if (value->kind == FUSE_PICKLE_TENSOR)
            FUSE_TRY_OUT(add_entry(file, root, root_length, &name, value->as.tensor, error));
        else {
            path[depth].value = value;
            path[depth].next = 0;
            path[depth++].name_length = name.length;
        }
    }
out:
    fuse_text_free(&name);
    return status;
}

int fuse_pth_open(const char *path, enum fuse_pth_scope scope, const char *weights_key, struct fuse_pth **file,
                  struct fuse_error *error)
{
    int status;
    const char *root = NULL;
    size_t root_length = 0;
    *file = NULL;
    struct fuse_pth *self = calloc(1, sizeof *self);
    if (self == NULL)
        return fuse_fail_memory(error, "an open file", sizeof *self);
    FUSE_TRY_OUT(fuse_input_open(path, &self->input, error));
    FUSE_TRY_OUT(check_magic(self, error));
    FUSE_TRY_OUT(fuse_zip_open(&self->input, &self->zip, error));
    FUSE_TRY_OUT(find_root(self, &root, &root_length, error));
    FUSE_TRY_OUT(read_byte_order(self, root, root_length, error));
    FUSE_TRY_OUT(read_pickle(self, root, root_length, error));
    const struct fuse_pickle_value *chosen = fuse_pickle_root(self->pickle);
    if (scope == FUSE_PTH_STATE_DICT)
        FUSE_TRY_OUT(choose_state_dict(self, weights_key, &chosen, error));
    FUSE_TRY_OUT(list_tensors(self, root, root_length, chosen, error));
    *file = self;
    self = NULL;
out:
    fuse_pth_close(&self);
    return status;
}

void fuse_pth_close(struct fuse_pth **file)
{
    struct fuse_pth *self = *file;
    if (self == NULL)
        return;
    for (size_t i = 0; i < self->count; i++)
        free((void *)(uintptr_t)self->entries[i].name);
    free(self->entries);
    fuse_pickle_free(&self->pickle);
    free(self->bytes);
    fuse_zip_close(&self->zip);
    fuse_input_close(&self->input);
    free(self);
    *file = NULL;
}

size_t fuse_pth_count(const struct fuse_pth *file)
{
    return file->count;
}

const struct fuse_pth_entry *fuse_pth_entry(const struct fuse_pth *file, size_t index)
{
    return index < file->count ? &file->entries[index] : NULL;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static void swap_bytes(unsigned char *elements, uint64_t count, uint32_t each)
{
    for (uint64_t i = 0; i < count; i++, elements += each)
        for (uint32_t low = 0, high = each - 1; low < high; low++, high--) {
            const unsigned char byte = elements[low];
            elements[low] = elements[high];
            elements[high] = byte;
        }
}

/* Part of the file in memory. */
struct window {
    unsigned char *bytes;
    uint64_t begin;
    uint64_t end;
    uint64_t limit; /* the end of the tensor's last element */
};

/* Axes of a box, ordered by their stride in the file, the largest first. */
struct axis {
    uint64_t size;
    uint64_t from; /* stride in the file, bytes */
    uint64_t to;   /* stride at the destination, bytes */
    uint64_t index;
};

/* The box that is `rows` long in dimension `first` and whole in those behind it, from byte `from` of the file. It is
 * walked in the order of the file, so that every byte is read once, whatever the strides. */
static int read_box(const struct fuse_pth *file, const struct fuse_pth_entry *entry, uint32_t first, uint64_t rows,
                    uint64_t from, struct window *window, unsigned char *to, struct fuse_error *error)
{
    const uint32_t each = entry->element_bytes;
    struct axis axes[FUSE_PICKLE_RANK_LIMIT];
    size_t count = 0;
    uint64_t step = each;
    for (uint32_t d = entry->rank; d-- > first;) {
        const struct axis axis = {d == first ? rows : entry->shape[d], entry->stride[d] * each, step, 0};
        step *= axis.size;
        if (axis.size == 1)
            continue;
        size_t at = count++;
        for (; at > 0 && axes[at - 1].from < axis.from; at--)
            axes[at] = axes[at - 1];
        axes[at] = axis;
    }
    /* Bytes that lie close together: what one read should fetch. */
    uint64_t span = each;
    for (size_t i = count; i-- > 0 && axes[i].from <= span + GAP_BYTES;)
        span += (axes[i].size - 1) * axes[i].from;
    span = span < WINDOW_BYTES ? span : WINDOW_BYTES;
    for (;;) {
        if (from < window->begin || from + each > window->end) {
            window->begin = from;
            window->end = span < window->limit - from ? from + span : window->limit;
            FUSE_TRY(fuse_input_read(&file->input, from, window->bytes, window->end - from, error));
        }
        memcpy(to, window->bytes + (from - window->begin), each);
        size_t i = count;
        for (; i > 0; i--) {
            struct axis *axis = &axes[i - 1];
            if (++axis->index < axis->size) {
                from += axis->from;
                to += axis->to;
                break;
            }
            axis->index = 0;
            from -= (axis->size - 1) * axis->from;
            to -= (axis->size - 1) * axis->to;
        }
        if (i == 0)
            return FUSERUN_OK;
    }
}

/* Cuts the range into boxes: as many whole slices of the outermost dimension as there are, then of the next, ... */
static int read_strided(const struct fuse_pth *file, const struct fuse_pth_entry *entry, uint64_t first, uint64_t count,
                        unsigned char *to, struct fuse_error *error)
{
    int status = FUSERUN_OK;
    const uint32_t each = entry->element_bytes;
    uint64_t inner[FUSE_PICKLE_RANK_LIMIT]; /* elements in a slice of dimension d */
    struct window window = {.limit = entry->offset + each, .bytes = malloc(WINDOW_BYTES)};
    if (window.bytes == NULL)
        return fuse_fail_memory(error, "reading a tensor", WINDOW_BYTES);
    for (uint32_t d = entry->rank; d-- > 0;) {
        inner[d] = d + 1 == entry->rank ? 1 : inner[d + 1] * entry->shape[d + 1];
        window.limit += (entry->shape[d] - 1) * entry->stride[d] * each;
    }
    while (count > 0) {
        uint32_t d = 0;
        uint64_t from = entry->offset;
        while (first % inner[d] != 0 || inner[d] > count)
            d++;
        for (uint32_t i = 0; i <= d; i++)
            from += first / inner[i] % entry->shape[i] * entry->stride[i] * each;
        const uint64_t left = entry->shape[d] - first / inner[d] % entry->shape[d];
        const uint64_t rows = count / inner[d] < left ? count / inner[d] : left;
        FUSE_TRY_OUT(read_box(file, entry, d, rows, from, &window, to, error));
        to += rows * inner[d] * each;
        first += rows * inner[d];
        count -= rows * inner[d];
    }
out:
    free(window.bytes);
    return status;
}

int fuse_pth_read(const struct fuse_pth *file, const struct fuse_pth_entry *entry, uint64_t first, uint64_t count,
                  void *elements, struct fuse_error *error)
{
    const uint32_t each = entry->element_bytes;
    if (first > entry->element_count || count > entry->element_count - first)
        return bad_tensor(file, error, entry->name, "a read reaches past its end");
    if (entry->is_contiguous)
        FUSE_TRY(fuse_input_read(&file->input, entry->offset + first * each, elements, count * each, error));
    else
        FUSE_TRY(read_strided(file, entry, first, count, elements, error));
    if (file->is_swapped)
        swap_bytes(elements, count, each);
    return FUSERUN_OK;
}
