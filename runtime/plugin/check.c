/* What a plugin returned, checked field by field and copied into structs of this fuserun's own size. */
#include "plugin/loader.h"

#include "plugin/registry.h"
#include "plugin/schema.h"

#include <fuserun/backend.h>
#include <fuserun/dataset.h>
#include <fuserun/model.h>
#include <fuserun/optimizer.h>
#include <fuserun/scheduler.h>

#include <stdlib.h>
#include <string.h>

#define COMPONENTS_MAX 64
#define SCHEDULE_STATES_MAX 1024

#define BROKEN(...) fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, __VA_ARGS__)

/* Zeroed memory that lives as long as the checked plugin. */
static void *take(struct fuse_checked_plugin *checked, size_t bytes, struct fuse_error *error)
{
    /* The link takes a whole alignment unit, so that what follows is aligned for anything. */
    const size_t head =
        _Alignof(max_align_t) > sizeof(struct fuse_block) ? _Alignof(max_align_t) : sizeof(struct fuse_block);
    struct fuse_block *block = calloc(1, head + bytes);
    if (block == NULL) {
        (void)fuse_fail_memory(error, "a plugin's description", head + bytes);
        return NULL;
    }
    block->next = checked->blocks;
    checked->blocks = block;
    return (char *)block + head;
}

void fuse_plugin_release(struct fuse_checked_plugin *checked)
{
    while (checked->blocks != NULL) {
        struct fuse_block *next = checked->blocks->next;
        free(checked->blocks);
        checked->blocks = next;
    }
    checked->plugin = (struct fuse_plugin){0};
}

/* Copies a struct of the plugin's, whose first field is its size, into `ours`, zeroed and of our_bytes. The size it
 * then bears is that of the copy: what the plugin did not know is there, and zero. */
static void copy_struct(void *ours, size_t our_bytes, const void *theirs)
{
    uint32_t their_bytes;
    memcpy(&their_bytes, theirs, sizeof their_bytes);
    memcpy(ours, theirs, their_bytes < our_bytes ? their_bytes : our_bytes);
    const uint32_t size = (uint32_t)our_bytes;
    memcpy(ours, &size, sizeof size);
}

static int check_size(const void *theirs, uint32_t smallest, const char *what, struct fuse_error *error)
{
    uint32_t bytes;
    memcpy(&bytes, theirs, sizeof bytes);
    if (bytes < smallest)
        return BROKEN("%s: struct_size is %u in the plugin, at least %u is needed", what, bytes, smallest);
    return FUSERUN_OK;
}

static int check_abi(const struct fuse_abi *abi, struct fuse_error *error)
{
    const uint32_t size = FUSERUN_STRUCT_SIZE(fuse_abi, option_type_count);
    if (abi->magic != FUSERUN_ABI_MAGIC)
        return BROKEN("FUSERUN_ABI_MAGIC is 0x%08x in the plugin, 0x%08x in this fuserun", abi->magic,
                      FUSERUN_ABI_MAGIC);
    const struct {
        const char *name;
        uint32_t theirs, ours;
    } constants[] = {
        {"FUSERUN_ABI_MAJOR", abi->major, FUSERUN_ABI_MAJOR},
        /* It lies inside fuse_plugin, so it can never grow within one major. */
        {"the size of struct fuse_abi", abi->struct_size, size},
        {"FUSERUN_MAX_DIMS", abi->max_dims, FUSERUN_MAX_DIMS},
        {"sizeof(void *)", abi->pointer_bytes, sizeof(void *)},
        {"FUSERUN_DTYPE_COUNT", abi->dtype_count, FUSERUN_DTYPE_COUNT},
        {"FUSERUN_OPTION_TYPE_COUNT", abi->option_type_count, FUSERUN_OPTION_TYPE_COUNT},
    };
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        if (i == 2 && abi->requires_minor > FUSERUN_ABI_MINOR)
            return BROKEN("it requires FUSERUN_ABI_MINOR %u, this fuserun has %u", abi->requires_minor,
                          FUSERUN_ABI_MINOR);
        if (constants[i].theirs != constants[i].ours)
            return BROKEN("%s is %u in the plugin, %u in this fuserun", constants[i].name, constants[i].theirs,
                          constants[i].ours);
    }
    return FUSERUN_OK;
}

/* ---- the kinds ----------------------------------------------------------------------------------------------- */

struct callback {
    const char *name;
    size_t offset;
};
#define CALLBACK(type, field)                                                                                          \
    {                                                                                                                  \
#field, offsetof(struct type, field)                                                                           \
    }

static const struct callback optimizer_callbacks[] = {CALLBACK(fuse_optimizer, prepare)};
static const struct callback scheduler_callbacks[] = {
    CALLBACK(fuse_scheduler, create), CALLBACK(fuse_scheduler, destroy), CALLBACK(fuse_scheduler, value)};
static const struct callback model_callbacks[] = {CALLBACK(fuse_model, build)};
static const struct callback dataset_callbacks[] = {CALLBACK(fuse_dataset, open), CALLBACK(fuse_dataset, close),
                                                    CALLBACK(fuse_dataset, describe), CALLBACK(fuse_dataset, read)};
static const struct callback backend_callbacks[] = {
    CALLBACK(fuse_backend, device_count), CALLBACK(fuse_backend, open),         CALLBACK(fuse_backend, close),
    CALLBACK(fuse_backend, describe),     CALLBACK(fuse_backend, allocate),     CALLBACK(fuse_backend, release),
    CALLBACK(fuse_backend, upload),       CALLBACK(fuse_backend, download),     CALLBACK(fuse_backend, synchronize),
    CALLBACK(fuse_backend, compile),      CALLBACK(fuse_backend, discard),      CALLBACK(fuse_backend, run),
    CALLBACK(fuse_backend, compile_rule), CALLBACK(fuse_backend, discard_rule), CALLBACK(fuse_backend, update),
    CALLBACK(fuse_backend, update_panel), CALLBACK(fuse_backend, has_nonfinite)};

/* smallest: the size in version 1.0, up to the last field that a plugin cannot do without. It never changes. */
#define KIND(name_, type, last_required, last, callbacks_)                                                             \
    {                                                                                                                  \
        name_, FUSERUN_STRUCT_SIZE(type, last_required), FUSERUN_STRUCT_SIZE(type, last), callbacks_,                  \
            sizeof(callbacks_) / sizeof((callbacks_)[0])                                                               \
    }
static const struct kind {
    const char *name;
    uint32_t smallest;
    uint32_t bytes;
    const struct callback *callbacks;
    size_t callback_count;
} kinds[FUSERUN_KIND_COUNT] = {
    KIND("optimizer", fuse_optimizer, prepare, prepare, optimizer_callbacks),
    KIND("scheduler", fuse_scheduler, value, set_state, scheduler_callbacks),
    KIND("model", fuse_model, build, build, model_callbacks),
    KIND("dataset", fuse_dataset, read, read, dataset_callbacks),
    KIND("backend", fuse_backend, has_nonfinite, describe_libraries, backend_callbacks),
};

const char *fuse_kind_name(enum fuse_kind kind)
{
    return kind >= 1 && kind <= FUSERUN_KIND_COUNT ? kinds[kind - 1].name : "plugin";
}

/* A NULL function pointer is all zero bytes on every platform that has dlopen(). */
static bool is_absent(const void *api, size_t offset)
{
    static const unsigned char zero[sizeof(void (*)(void))];
    return memcmp((const char *)api + offset, zero, sizeof zero) == 0;
}

static int copy_rule(struct fuse_checked_plugin *checked, const struct fuse_rule *given, const char *what,
                     const struct fuse_rule **rule, struct fuse_error *error)
{
    if (given == NULL)
        return BROKEN("%s: a rule is NULL", what);
    FUSE_TRY(check_size(given, FUSERUN_STRUCT_SIZE(fuse_rule, update_foreach), "struct fuse_rule", error));
    struct fuse_rule *copy = take(checked, sizeof *copy, error);
    if (copy == NULL)
        return FUSERUN_ERROR_MEMORY;
    copy_struct(copy, FUSERUN_STRUCT_SIZE(fuse_rule, scratches), given);
    FUSE_TRY(fuse_schema_check_rule(copy, what, error));
    *rule = copy;
    return FUSERUN_OK;
}

/* What the component says of itself against what its rules are. */
static int check_capability(const struct fuse_rule *rule, uint64_t capabilities, const char *what,
                            struct fuse_error *error)
{
    const bool is_whole = rule->update_tensor != NULL;
    if (is_whole != ((capabilities & FUSERUN_OPTIMIZER_WHOLE) != 0))
        return BROKEN("%s: rule '%.60s' %s update_tensor, so the optimizer %s FUSERUN_OPTIMIZER_WHOLE", what,
                      rule->name, is_whole ? "has" : "lacks", is_whole ? "needs" : "cannot have");
    if (is_whole && (capabilities & FUSERUN_OPTIMIZER_ELEMENTWISE) != 0)
        return BROKEN("%s: it cannot be both FUSERUN_OPTIMIZER_ELEMENTWISE and FUSERUN_OPTIMIZER_WHOLE", what);
    return FUSERUN_OK;
}

static int copy_rules(struct fuse_checked_plugin *checked, struct fuse_optimizer *optimizer, uint64_t capabilities,
                      const char *what, struct fuse_error *error)
{
    if (optimizer->rule_count == 0 || optimizer->rules == NULL)
        return BROKEN("%s: has no rule", what);
    if (optimizer->rule_count > 64)
        return BROKEN("%s: has %u rules, at most 64 are possible", what, optimizer->rule_count);
    if (optimizer->rule_count > 1 && optimizer->select_rule == NULL)
        return BROKEN("%s: lacks the callback select_rule, needed with %u rules", what, optimizer->rule_count);
    const struct fuse_rule **rules = take(checked, optimizer->rule_count * sizeof *rules, error);
    if (rules == NULL)
        return FUSERUN_ERROR_MEMORY;
    for (uint32_t i = 0; i < optimizer->rule_count; i++) {
        FUSE_TRY(copy_rule(checked, optimizer->rules[i], what, &rules[i], error));
        FUSE_TRY(check_capability(rules[i], capabilities, what, error));
    }
    optimizer->rules = rules;
    return FUSERUN_OK;
}

static int copy_api(struct fuse_checked_plugin *checked, struct fuse_component *component, const char *what,
                    struct fuse_error *error)
{
    const struct kind *kind = &kinds[component->kind - 1];
    if (component->api == NULL)
        return BROKEN("%s: its api is NULL", what);
    FUSE_TRY(check_size(component->api, kind->smallest, what, error));
    void *api = take(checked, kind->bytes, error);
    if (api == NULL)
        return FUSERUN_ERROR_MEMORY;
    copy_struct(api, kind->bytes, component->api);
    for (size_t i = 0; i < kind->callback_count; i++) {
        if (is_absent(api, kind->callbacks[i].offset))
            return BROKEN("%s: lacks the callback %s", what, kind->callbacks[i].name);
    }
    if (component->kind == FUSERUN_KIND_OPTIMIZER)
        FUSE_TRY(copy_rules(checked, api, component->capabilities, what, error));
    if (component->kind == FUSERUN_KIND_SCHEDULER) {
        const struct fuse_scheduler *scheduler = api;
        if ((scheduler->cycles_momentum == NULL) != (scheduler->momentum == NULL))
            return BROKEN("%s: lacks the callback %s, which goes with %s", what,
                          scheduler->momentum == NULL ? "momentum" : "cycles_momentum",
                          scheduler->momentum == NULL ? "cycles_momentum" : "momentum");
        if (scheduler->metric != NULL && scheduler->observe == NULL)
            return BROKEN("%s: lacks the callback observe, which goes with metric", what);
        if (scheduler->state_count > SCHEDULE_STATES_MAX)
            return BROKEN("%s: its state has %u numbers, at most %d are possible", what, scheduler->state_count,
                          SCHEDULE_STATES_MAX);
        if ((scheduler->state_count > 0 || scheduler->get_state != NULL || scheduler->set_state != NULL) &&
            (scheduler->state_count == 0 || scheduler->get_state == NULL || scheduler->set_state == NULL))
            return BROKEN("%s: state_count, get_state and set_state go together, but one is missing", what);
    }
    if (component->kind == FUSERUN_KIND_BACKEND) {
        const struct fuse_backend *backend = api;
        if ((backend->compile_tensor == NULL) != (backend->discard_tensor == NULL) ||
            (backend->compile_tensor == NULL) != (backend->update_tensor == NULL))
            return BROKEN("%s: compile_tensor, discard_tensor and update_tensor go together", what);
        if ((backend->allocate_staging == NULL) != (backend->release_staging == NULL) ||
            (backend->allocate_staging == NULL) != (backend->upload_staged == NULL))
            return BROKEN("%s: allocate_staging, release_staging and upload_staged go together", what);
        if ((backend->watch_begin == NULL) != (backend->watch == NULL) ||
            (backend->watch_begin == NULL) != (backend->watched == NULL))
            return BROKEN("%s: watch_begin, watch and watched go together", what);
    }
    component->api = api;
    return FUSERUN_OK;
}

/* ---- arrays of structs that may be of another size than ours -------------------------------------------------- */

/* Element i of an array whose elements are `stride` apart, checked to lie within its stride. */
static int array_element(const void *array, uint32_t stride, uint32_t index, uint32_t smallest, const char *what,
                         const void **element, struct fuse_error *error)
{
    if (stride < smallest || stride % sizeof(void *) != 0)
        return BROKEN("%s: stride is %u bytes in the plugin, at least %u is needed", what, stride, smallest);
    *element = (const char *)array + (size_t)index * stride;
    FUSE_TRY(check_size(*element, smallest, what, error));
    uint32_t bytes;
    memcpy(&bytes, *element, sizeof bytes);
    if (bytes > stride)
        return BROKEN("%s: struct_size is %u in the plugin, more than its stride of %u", what, bytes, stride);
    return FUSERUN_OK;
}

static int copy_options(struct fuse_checked_plugin *checked, struct fuse_component *component, const char *what,
                        struct fuse_error *error)
{
    if (component->option_count == 0) {
        component->options = NULL;
        return FUSERUN_OK;
    }
    if (component->options == NULL)
        return BROKEN("%s: declares %u options, but the table is NULL", what, component->option_count);
    if (component->option_count > FUSE_OPTIONS_MAX)
        return BROKEN("%s: declares %u options, at most %d are possible", what, component->option_count,
                      FUSE_OPTIONS_MAX);
    struct fuse_option *options = take(checked, component->option_count * sizeof *options, error);
    if (options == NULL)
        return FUSERUN_ERROR_MEMORY;
    for (uint32_t i = 0; i < component->option_count; i++) {
        const void *given;
        FUSE_TRY(array_element(component->options, component->option_stride, i, FUSERUN_STRUCT_SIZE(fuse_option, help),
                               "struct fuse_option", &given, error));
        copy_struct(&options[i], FUSERUN_STRUCT_SIZE(fuse_option, help), given);
        if (options[i].help == NULL)
            options[i].help = "";
    }
    component->options = options;
    component->option_stride = sizeof *options;
    return fuse_schema_check_options(component, what, error);
}

static bool is_name(const char *text)
{
    if (text == NULL || text[0] == '\0' || text[0] == '.' || strlen(text) > FUSE_PLUGIN_NAME_MAX)
        return false;
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")] == '\0';
}

static int copy_component(struct fuse_checked_plugin *checked, const struct fuse_plugin *given, uint32_t index,
                          struct fuse_component *component, struct fuse_error *error)
{
    const void *theirs;
    FUSE_TRY(array_element(given->components, given->component_stride, index, FUSERUN_STRUCT_SIZE(fuse_component, api),
                           "struct fuse_component", &theirs, error));
    copy_struct(component, FUSERUN_STRUCT_SIZE(fuse_component, api), theirs);
    if (component->kind < 1 || component->kind > FUSERUN_KIND_COUNT)
        return BROKEN("component %u has kind %u, this fuserun knows 1 to %d", index + 1, component->kind,
                      FUSERUN_KIND_COUNT);
    if (!is_name(component->name))
        return BROKEN("component %u has no usable name (letters, digits, '_', '-', '.'; at most %d)", index + 1,
                      FUSE_PLUGIN_NAME_MAX);
    if (component->summary == NULL)
        component->summary = "";
    char what[FUSE_PLUGIN_NAME_MAX + 32];
    (void)fuse_schema_what(what, sizeof what, fuse_kind_name((enum fuse_kind)component->kind), component->name);
    FUSE_TRY(copy_options(checked, component, what, error));
    return copy_api(checked, component, what, error);
}

static int check(const struct fuse_plugin *given, const char *stem, struct fuse_checked_plugin *checked,
                 struct fuse_error *error)
{
    FUSE_TRY(check_size(given, FUSERUN_STRUCT_SIZE(fuse_plugin, component_stride), "struct fuse_plugin", error));
    FUSE_TRY(check_abi(&given->abi, error));
    copy_struct(&checked->plugin, FUSERUN_STRUCT_SIZE(fuse_plugin, component_stride), given);
    struct fuse_plugin *plugin = &checked->plugin;
    if (!is_name(plugin->name))
        return BROKEN("the plugin has no usable name (letters, digits, '_', '-', '.'; at most %d)",
                      FUSE_PLUGIN_NAME_MAX);
    if (strcmp(plugin->name, stem) != 0)
        return BROKEN("the plugin calls itself '%s', so its file must be called %s.so", plugin->name, plugin->name);
    if (plugin->version == NULL)
        plugin->version = "";
    if (plugin->license == NULL)
        plugin->license = "";
    if (plugin->component_count == 0 || plugin->components == NULL)
        return BROKEN("the plugin has no component");
    if (plugin->component_count > COMPONENTS_MAX)
        return BROKEN("the plugin has %u components, at most %d are possible", plugin->component_count, COMPONENTS_MAX);
    struct fuse_component *components = take(checked, plugin->component_count * sizeof *components, error);
    if (components == NULL)
        return FUSERUN_ERROR_MEMORY;
    for (uint32_t i = 0; i < plugin->component_count; i++) {
        FUSE_TRY(copy_component(checked, given, i, &components[i], error));
        for (uint32_t k = 0; k < i; k++) {
            if (components[k].kind == components[i].kind && strcmp(components[k].name, components[i].name) == 0)
                return BROKEN("two %ss are called '%s'", fuse_kind_name((enum fuse_kind)components[i].kind),
                              components[i].name);
        }
    }
    plugin->components = components;
    plugin->component_stride = sizeof *components;
    return FUSERUN_OK;
}

int fuse_plugin_check(const struct fuse_plugin *given, const char *stem, struct fuse_checked_plugin *checked,
                      struct fuse_error *error)
{
    *checked = (struct fuse_checked_plugin){0};
    const int status = check(given, stem, checked, error);
    if (status != FUSERUN_OK)
        fuse_plugin_release(checked);
    return status;
}
