/* The registry against good and bad plugins, and the search path. argv[1]: the folder with the modules of variant.c. */
#include "base/text.h"
#include "plugin/registry.h"

#include <fuserun/optimizer.h>
#include <fuserun/scheduler.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *modules;
static char root[64]; /* a temporary folder of this process */

/* ---- files ----------------------------------------------------------------------------------------------------- */

static const char *in_root(const char *name)
{
    static char paths[8][256];
    static unsigned next;
    char *path = paths[next++ % 8];
    (void)snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void make_folder(const char *name)
{
    assert_int_equal(mkdir(in_root(name), 0755), 0);
}

static void write_file(const char *name, const void *bytes, size_t count)
{
    FILE *file = fopen(in_root(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* The bytes of the module that behaves as its name says; the caller frees. */
static char *read_module(const char *variant, size_t *count)
{
    const bool is_apart = strcmp(variant, "no_entry") == 0 || strcmp(variant, "unresolved") == 0;
    char *path = fuse_format("%s/%s.so", modules, is_apart ? variant : "variant");
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    free(path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *count = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*count);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *count, file), *count);
    assert_int_equal(fclose(file), 0);
    return bytes;
}

static void copy_module(const char *variant, const char *name)
{
    size_t count;
    char *bytes = read_module(variant, &count);
    write_file(name, bytes, count);
    free(bytes);
}

static struct fuse_registry *registry_of(const char *first, const char *second)
{
    const char *const folders[] = {first, second};
    struct fuse_registry *registry = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_registry_new(folders, (first != NULL) + (second != NULL), NULL, &registry, &error),
                     FUSERUN_OK);
    return registry;
}

static int set_up(void **state)
{
    (void)state;
    (void)unsetenv("FUSERUN_PLUGIN_PATH");
    (void)snprintf(root, sizeof root, "/tmp/fuserun-registry-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    char *command = fuse_format("rm -rf %s", root);
    const int status = system(command);
    free(command);
    return status;
}

/* ---- bad citizens ------------------------------------------------------------------------------------------------ */

static const struct {
    const char *variant;
    const char *message;
} broken[] = {
    {"no_entry", "not a fuserun plugin of ABI major 1: it exports no fuse_plugin_v1()"},
    {"null_entry", "says that it cannot work here (fuse_plugin_v1() returned NULL)"},
    {"unresolved", "cannot be loaded: undefined symbol: fuse_test_nobody_defines_this"},
    {"aborts", "crashes while it is loaded (Aborted)"},
    {"crashes", "crashes while it is loaded (Segmentation fault)"},
    {"exits", "ends the process while it is loaded (exit status 0)"},
    {"small_plugin", "struct fuse_plugin: struct_size is 56 in the plugin, at least 72 is needed"},
    {"small_abi", "the size of struct fuse_abi is 12 in the plugin, 28 in this fuserun"},
    {"magic", "FUSERUN_ABI_MAGIC is 0xdeadbeef in the plugin, 0x46555345 in this fuserun"},
    {"major", "FUSERUN_ABI_MAJOR is 2 in the plugin, 1 in this fuserun"},
    {"minor", "it requires FUSERUN_ABI_MINOR 99, this fuserun has 0"},
    {"max_dims", "FUSERUN_MAX_DIMS is 4 in the plugin, 8 in this fuserun"},
    {"pointer_bytes", "sizeof(void *) is 16 in the plugin, 8 in this fuserun"},
    {"dtype_count", "FUSERUN_DTYPE_COUNT is 3 in the plugin, 5 in this fuserun"},
    {"option_types", "FUSERUN_OPTION_TYPE_COUNT is 2 in the plugin, 9 in this fuserun"},
    {"other_name", "the plugin calls itself 'someone_else', so its file must be called someone_else.so"},
    {"no_name", "the plugin has no usable name (letters, digits, '_', '-', '.'; at most 100)"},
    {"no_component", "the plugin has no component"},
    {"component_kind", "component 1 has kind 77, this fuserun knows 1 to 5"},
    {"component_stride", "struct fuse_component: stride is 8 bytes in the plugin, at least 56 is needed"},
    {"component_size", "struct fuse_component: struct_size is 16 in the plugin, at least 56 is needed"},
    {"component_name", "component 1 has no usable name (letters, digits, '_', '-', '.'; at most 100)"},
    {"twins", "two optimizers are called 'twins'"},
    {"no_api", "optimizer 'no_api': its api is NULL"},
    {"small_api", "optimizer 'small_api': struct_size is 8 in the plugin, at least 40 is needed"},
    {"no_prepare", "optimizer 'no_prepare': lacks the callback prepare"},
    {"no_value", "scheduler 'no_value': lacks the callback value"},
    {"blind_metric", "scheduler 'blind_metric': lacks the callback observe, which goes with metric"},
    {"half_state", "scheduler 'half_state': state_count, get_state and set_state go together, but one is missing"},
    {"huge_state", "scheduler 'huge_state': its state has 100000 numbers, at most 1024 are possible"},
    {"half_momentum", "scheduler 'half_momentum': lacks the callback momentum, which goes with cycles_momentum"},
    {"no_rules", "optimizer 'no_rules': has no rule"},
    {"null_rule", "optimizer 'null_rule': a rule is NULL"},
    {"no_select", "optimizer 'no_select': lacks the callback select_rule, needed with 2 rules"},
    {"no_slice", "optimizer 'no_slice': rule 'decay_rule' lacks the callback update_slice"},
    {"small_rule", "struct fuse_rule: struct_size is 24 in the plugin, at least 64 is needed"},
    {"many_states", "optimizer 'many_states': rule 'decay_rule' has 9 states, FUSERUN_MAX_STATES is 8"},
    {"many_scalars", "optimizer 'many_scalars': rule 'decay_rule' has 17 scalars, FUSERUN_MAX_SCALARS is 16"},
    {"state_names", "optimizer 'state_names': rule 'decay_rule' names its states '(mean)', but has 2"},
    {"same_states", "optimizer 'same_states': rule 'decay_rule' names its states '(mean, mean)', but has 2"},
    {"scalar_names", "optimizer 'scalar_names': rule 'decay_rule' names its scalars 'lr, momentum', but has 2"},
    {"state_step", "optimizer 'state_step': rule 'decay_rule': a state may not be called 'step'"},
    {"many_numbers", "optimizer 'many_numbers': rule 'decay_rule' keeps 5 numbers, FUSERUN_MAX_NUMBERS is 4"},
    {"number_names", "optimizer 'number_names': rule 'decay_rule' names its numbers '(product)', but keeps 2, whose "
                     "names must differ from its states' and from 'step'"},
    {"number_null", "optimizer 'number_null': rule 'decay_rule' names its numbers '', but keeps 1, whose names must "
                    "differ from its states' and from 'step'"},
    {"number_state", "optimizer 'number_state': rule 'decay_rule' names its numbers '(mean)', but keeps 1, whose names "
                     "must differ from its states' and from 'step'"},
    {"number_step", "optimizer 'number_step': rule 'decay_rule' names its numbers '(step)', but keeps 1, whose names "
                    "must differ from its states' and from 'step'"},
    {"no_plan", "optimizer 'no_plan': rule 'decay_rule' lacks the callback plan_tensor, which goes with update_tensor"},
    {"not_whole",
     "optimizer 'not_whole': rule 'decay_rule' has update_tensor, so the optimizer needs FUSERUN_OPTIMIZER_WHOLE"},
    {"not_a_tensor", "optimizer 'not_a_tensor': rule 'decay_rule' lacks update_tensor, so the optimizer cannot have "
                     "FUSERUN_OPTIMIZER_WHOLE"},
    {"both_ways", "optimizer 'both_ways': it cannot be both FUSERUN_OPTIMIZER_ELEMENTWISE and FUSERUN_OPTIMIZER_WHOLE"},
    {"passes_alone", "optimizer 'passes_alone': rule 'decay_rule' has passes or scratches, but lacks update_tensor"},
    {"no_passes", "optimizer 'no_passes': rule 'decay_rule' has passes or scratches, but lacks passes"},
    {"many_passes", "optimizer 'many_passes': rule 'decay_rule' has 17 passes and 0 scratches, at most 16 and 8 are "
                    "possible"},
    {"scratch_names", "optimizer 'scratch_names': rule 'decay_rule' names its scratches '(x, x)', but has 2"},
    {"pass_kind", "optimizer 'pass_kind': rule 'decay_rule': its pass 0 is not one"},
    {"pass_sums", "optimizer 'pass_sums': rule 'decay_rule': its pass 0 is not one"},
    {"option_default", "optimizer 'option_default': option 'lr': its default 'fast' is refused: "},
    {"option_outside", "optimizer 'option_outside': option 'lr': its default '-1' is refused: "},
    {"option_choice", "optimizer 'option_choice': option 'shape': its default 'oval' is refused: "},
    {"option_choices", "optimizer 'option_choices': option 'shape' needs choices of the form \"a|b\", each named once"},
    {"option_type", "optimizer 'option_type': option 'lr' has type 42, this fuserun knows 1 to 9"},
    {"option_range", "optimizer 'option_range': option 'lr': its range '[0, 1' is no interval such as [0, 1)"},
    {"option_key",
     "optimizer 'option_key': an option's key is 'Learning Rate', it must be lower-case letters, digits and "
     "'_', at most 47"},
    {"option_twice", "optimizer 'option_twice': option 'lr' is declared twice"},
    {"option_core", "optimizer 'option_core': option 'plugin' is fuserun's own"},
    {"option_null", "optimizer 'option_null': declares 2 options, but the table is NULL"},
    {"option_size", "struct fuse_option: struct_size is 8 in the plugin, at least 72 is needed"},
    {"option_stage", "optimizer 'option_stage': option 'shape' is a stage, which only schedulers have"},
    {"option_driven", "optimizer 'option_driven': option 'shape' cannot be schedulable: "},
    {"option_elements", "optimizer 'option_elements': option 'lr': elements 'a|b' must name each of its 0 values once"},
};

static void expect_broken(struct fuse_registry *registry, const char *variant, const char *file, const char *message)
{
    const struct fuse_component *component;
    const char *found;
    struct fuse_error error = FUSE_ERROR_INIT;
    char *start = fuse_format("plugin %s: %s", file, message);
    assert_int_not_equal(fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, variant, &component, &found, &error),
                         FUSERUN_OK);
    assert_null(component);
    if (strncmp(error.text, start, strlen(start)) != 0)
        fail_msg("expected: %s\n     got: %s", start, error.text);
    assert_null(strchr(error.text, '\n'));
    assert_string_equal(error.key, "plugin");
    free(start);
}

static void expect_good(struct fuse_registry *registry)
{
    const struct fuse_component *component;
    const char *file;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, "good", &component, &file, &error),
                     FUSERUN_OK);
    assert_string_equal(component->name, "good");
}

static void broken_plugins_give_one_line_each(void **state)
{
    (void)state;
    make_folder("broken");
    copy_module("good", "broken/good.so");
    struct fuse_registry *registry = registry_of(in_root("broken"), NULL);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        char *file = fuse_format("%s/broken/%s.so", root, broken[i].variant);
        copy_module(broken[i].variant, file + strlen(root) + 1);
        expect_broken(registry, broken[i].variant, file, broken[i].message);
        /* Told again in the same words, and nothing else suffers. */
        expect_broken(registry, broken[i].variant, file, broken[i].message);
        free(file);
        expect_good(registry);
    }
    assert_int_equal(fuse_registry_notice_count(registry), 0);
    fuse_registry_free(&registry);
}

static void broken_files_give_one_line_each(void **state)
{
    (void)state;
    size_t count;
    char *bytes = read_module("good", &count);
    make_folder("files");
    copy_module("good", "files/good.so");
    write_file("files/empty.so", "", 0);
    write_file("files/script.so", "#!/bin/sh\n", 10);
    write_file("files/header.so", bytes, 30);
    write_file("files/half.so", bytes, count / 2);
    make_folder("files/folder.so");
    assert_int_equal(symlink("nowhere", in_root("files/link.so")), 0);
    assert_int_equal(mkfifo(in_root("files/pipe.so"), 0644), 0);
    bytes[4] = 1; /* another class: a 32-bit file */
    write_file("files/other_class.so", bytes, count);
    free(bytes);

    struct fuse_registry *registry = registry_of(in_root("files"), NULL);
    expect_broken(registry, "empty", in_root("files/empty.so"), "the file is empty");
    expect_broken(registry, "script", in_root("files/script.so"), "not a shared object (no ELF header)");
    expect_broken(registry, "header", in_root("files/header.so"), "cut short: only 30 bytes of an ELF header");
    expect_broken(registry, "half", in_root("files/half.so"), "cut short: ");
    expect_broken(registry, "folder", in_root("files/folder.so"), "not a file");
    expect_broken(registry, "link", in_root("files/link.so"), "cannot be opened: No such file or directory");
    expect_broken(registry, "pipe", in_root("files/pipe.so"), "not a file");
    expect_broken(registry, "other_class", in_root("files/other_class.so"), "cannot be loaded: wrong ELF class");
    expect_good(registry);
    fuse_registry_free(&registry);
}

/* Every length of a good file short of the whole is refused or (only section headers lost) works; none is a crash. */
static void truncation_never_crashes(void **state)
{
    (void)state;
    size_t count;
    char *bytes = read_module("good", &count);
    make_folder("cut");
    for (size_t i = 0; i < 24; i++) {
        char name[32], folder[32];
        (void)snprintf(folder, sizeof folder, "cut/%zu", i);
        make_folder(folder);
        (void)snprintf(name, sizeof name, "cut/%zu/good.so", i);
        write_file(name, bytes, count * i / 24);
        struct fuse_registry *registry = registry_of(in_root(folder), NULL);
        const struct fuse_component *component;
        const char *file;
        struct fuse_error error = FUSE_ERROR_INIT;
        const int status = fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, "good", &component, &file, &error);
        if (i < 12)
            assert_int_not_equal(status, FUSERUN_OK);
        fuse_registry_free(&registry);
    }
    free(bytes);
}

/* ---- structs of other sizes ---------------------------------------------------------------------------------------
 */

static void older_and_later_structs_work(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool is_older;
    } cases[] = {{"good", false}, {"older", true}, {"later", false}};
    make_folder("sizes");
    struct fuse_registry *registry = registry_of(in_root("sizes"), NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *name = fuse_format("sizes/%s.so", cases[i].name);
        copy_module(cases[i].name, name);
        free(name);
        const struct fuse_component *component;
        const char *file;
        struct fuse_error error = FUSE_ERROR_INIT;
        assert_int_equal(fuse_registry_find(registry, FUSERUN_KIND_SCHEDULER, cases[i].name, &component, &file, &error),
                         FUSERUN_OK);
        assert_int_equal(component->struct_size, FUSERUN_STRUCT_SIZE(fuse_component, api));
        assert_string_equal(component->summary, "");
        assert_int_equal(component->option_count, 0);
        const struct fuse_scheduler *scheduler = component->api;
        assert_int_equal(scheduler->struct_size, FUSERUN_STRUCT_SIZE(fuse_scheduler, set_state));
        assert_null(scheduler->cycles_momentum);
        assert_null(scheduler->momentum);
        assert_null(scheduler->warn);
        assert_null(scheduler->observe);
        assert_int_equal(scheduler->state_count, 0);
        const struct fuse_schedule_query query = {.base = 21.0};
        assert_true(scheduler->value(NULL, &query) == 42.0);

        assert_int_equal(fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, cases[i].name, &component, &file, &error),
                         FUSERUN_OK);
        assert_int_equal(component->option_count, 2);
        assert_int_equal(component->option_stride, sizeof(struct fuse_option));
        assert_string_equal(component->options[1].key, "shape");
        assert_true((component->capabilities & FUSERUN_OPTIMIZER_ELEMENTWISE) != 0);
        const struct fuse_optimizer *optimizer = component->api;
        assert_int_equal(optimizer->rule_count, 1);
        assert_string_equal(optimizer->rules[0]->states, "(mean, scale)");
        assert_string_equal(optimizer->rules[0]->scalars, "(lr, momentum)");
        assert_int_equal(optimizer->rules[0]->state_count, 2);
    }
    fuse_registry_free(&registry);
}

/* The three forms of a rule do the same to the bit, also where a vector does not fit. */
static void rule_forms_agree(void **state)
{
    (void)state;
    enum { COUNT = 197 };
    static float param[3][COUNT], mean[3][COUNT], scale[3][COUNT], grad[COUNT];
    const float scalars[] = {0.125f, 0.5f};
    make_folder("rule");
    copy_module("good", "rule/good.so");
    struct fuse_registry *registry = registry_of(in_root("rule"), NULL);
    const struct fuse_component *component;
    const char *file;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, "good", &component, &file, &error),
                     FUSERUN_OK);
    const struct fuse_rule *rule = ((const struct fuse_optimizer *)component->api)->rules[0];
    for (int i = 0; i < COUNT; i++) {
        grad[i] = (float)(i % 13) - 6.1f;
        for (int k = 0; k < 3; k++) {
            param[k][i] = (float)i * 0.37f;
            mean[k][i] = 1.0f;
            scale[k][i] = 0.0f;
        }
    }
    for (int k = 0; k < 3; k++) {
        const int cut = k == 0 ? 1 : k == 1 ? COUNT : 64; /* element by element; at once; in panels by foreach */
        for (int first = 0; first < COUNT; first += cut) {
            float *const states[] = {mean[k] + first, scale[k] + first};
            const struct fuse_slice slice = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_slice, first),
                                             .state_count = 2,
                                             .param = param[k] + first,
                                             .grad = grad + first,
                                             .states = states,
                                             .scalars = scalars,
                                             .count = first + cut <= COUNT ? cut : COUNT - first,
                                             .first = first};
            if (k == 2)
                rule->update_foreach(&slice, 1);
            else
                rule->update_slice(&slice);
        }
    }
    assert_memory_equal(param[0], param[1], sizeof param[0]);
    assert_memory_equal(param[0], param[2], sizeof param[0]);
    assert_memory_equal(mean[0], mean[2], sizeof mean[0]);
    for (int i = 0; i < COUNT; i++) {
        /* volatile: as the rule, rounded to float after each operation */
        volatile float m = 0.5f * 1.0f;
        m = m + grad[i];
        volatile float step = 0.125f * m;
        assert_true(mean[0][i] == m);
        assert_true(param[0][i] == (float)i * 0.37f - step);
        assert_true(scale[1][i] == 1.0f);
    }
    fuse_registry_free(&registry);
}

/* ---- the search path ------------------------------------------------------------------------------------------------
 */

static void expect_file(struct fuse_registry *registry, enum fuse_kind kind, const char *name, const char *expected)
{
    const struct fuse_component *component;
    const char *file;
    struct fuse_error error = FUSE_ERROR_INIT;
    if (fuse_registry_find(registry, kind, name, &component, &file, &error) != FUSERUN_OK)
        fail_msg("%s", error.text);
    assert_string_equal(file, expected);
    assert_int_equal(component->kind, kind);
}

static void expect_error(struct fuse_registry *registry, enum fuse_kind kind, const char *name, const char *expected)
{
    const struct fuse_component *component;
    const char *file;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_registry_find(registry, kind, name, &component, &file, &error), FUSERUN_ERROR_CONFIG);
    if (strncmp(error.text, expected, strlen(expected)) != 0)
        fail_msg("expected: %s\n     got: %s", expected, error.text);
}

static void first_fitting_file_wins_and_says_so(void **state)
{
    (void)state;
    make_folder("a");
    make_folder("b");
    make_folder("b/optimizers");
    make_folder("c");
    copy_module("other_kind", "a/other_kind.so"); /* a scheduler only */
    copy_module("good", "b/optimizers/good.so");
    copy_module("good", "c/good.so");
    assert_int_equal(setenv("FUSERUN_PLUGIN_PATH", in_root("c"), 1), 0);
    struct fuse_registry *registry = registry_of(in_root("a"), in_root("b"));
    assert_int_equal(unsetenv("FUSERUN_PLUGIN_PATH"), 0);
    expect_file(registry, FUSERUN_KIND_OPTIMIZER, "good", in_root("b/optimizers/good.so"));
    expect_file(registry, FUSERUN_KIND_OPTIMIZER, "good", in_root("b/optimizers/good.so"));
    assert_int_equal(fuse_registry_notice_count(registry), 1);
    char *notice = fuse_format("optimizer 'good' is taken from %s, which hides %s", in_root("b/optimizers/good.so"),
                               in_root("c/good.so"));
    assert_string_equal(fuse_registry_notice(registry, 0), notice);
    free(notice);
    assert_false(fuse_registry_is_standard(registry, in_root("c/good.so")));
    /* A file by its path; one of the wrong kind. */
    expect_file(registry, FUSERUN_KIND_SCHEDULER, in_root("c/good.so"), in_root("c/good.so"));
    char *other =
        fuse_format("plugin %s offers a scheduler 'other_kind', not an optimizer", in_root("a/other_kind.so"));
    expect_error(registry, FUSERUN_KIND_OPTIMIZER, in_root("a/other_kind.so"), other);
    free(other);
    other = fuse_format("no optimizer 'other_kind', %s offers a scheduler 'other_kind'", in_root("a/other_kind.so"));
    expect_error(registry, FUSERUN_KIND_OPTIMIZER, "other_kind", other);
    free(other);
    fuse_registry_free(&registry);
}

static void a_file_of_another_kind_is_passed_over(void **state)
{
    (void)state;
    make_folder("d");
    make_folder("e");
    make_folder("e/schedulers");
    copy_module("other_kind", "d/other_kind.so");
    /* The same name, both kinds: the name inside decides nothing but that it must equal the file's. */
    size_t count;
    char *bytes = read_module("good", &count);
    write_file("e/good.so", bytes, count);
    free(bytes);
    write_file("e/schedulers/good.so", "broken", 6);
    struct fuse_registry *registry = registry_of(in_root("d"), in_root("e"));
    expect_file(registry, FUSERUN_KIND_SCHEDULER, "other_kind", in_root("d/other_kind.so"));
    /* A broken file behind the one that is used is nobody's business; neither is one in the folder of another kind. */
    expect_file(registry, FUSERUN_KIND_SCHEDULER, "good", in_root("e/good.so"));
    expect_file(registry, FUSERUN_KIND_OPTIMIZER, "good", in_root("e/good.so"));
    assert_int_equal(fuse_registry_notice_count(registry), 0);
    fuse_registry_free(&registry);
}

static void unknown_names_are_refused_with_what_is_known(void **state)
{
    (void)state;
    make_folder("f");
    make_folder("f/optimizers");
    make_folder("f/schedulers");
    write_file("f/optimizers/quickly.so", "never opened", 12);
    write_file("f/schedulers/slowly.so", "never opened", 12);
    struct fuse_registry *registry = registry_of(in_root("f"), NULL);
    const struct fuse_component *component;
    const char *file;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_registry_find(registry, FUSERUN_KIND_OPTIMIZER, "quikly", &component, &file, &error),
                     FUSERUN_ERROR_CONFIG);
    static const char start[] = "no optimizer 'quikly' (did you mean 'quickly'?); known: ";
    assert_memory_equal(error.text, start, sizeof start - 1);
    assert_non_null(strstr(error.text, "quickly"));
    assert_null(strstr(error.text, "slowly"));
    expect_error(registry, FUSERUN_KIND_MODEL, "", "the name of a model is empty");
    expect_error(registry, FUSERUN_KIND_MODEL, "../f/quickly",
                 "'../f/quickly': a plugin is given by its name, or by the");
    expect_error(registry, FUSERUN_KIND_MODEL, "f/quickly.so",
                 "'f/quickly.so': a plugin file must be named by its abso");
    char name[4000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    expect_error(registry, FUSERUN_KIND_MODEL, name,
                 "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...' has 3999 characters");
    fuse_registry_free(&registry);
}

static void the_working_directory_is_not_searched(void **state)
{
    (void)state;
    char before[4096];
    make_folder("here");
    copy_module("good", "here/good.so");
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(in_root("here")), 0);
    assert_int_equal(setenv("FUSERUN_PLUGIN_PATH", ".::here", 1), 0);
    struct fuse_registry *registry = registry_of(".", NULL);
    assert_int_equal(unsetenv("FUSERUN_PLUGIN_PATH"), 0);
    expect_error(registry, FUSERUN_KIND_OPTIMIZER, "good", "no optimizer 'good'");
    assert_int_equal(fuse_registry_notice_count(registry), 4);
    assert_string_equal(fuse_registry_notice(registry, 0),
                        "plugins.path: '.' is not an absolute folder and is not searched for plugins");
    assert_string_equal(fuse_registry_notice(registry, 3),
                        "FUSERUN_PLUGIN_PATH: 'here' is not an absolute folder and is not searched for plugins");
    fuse_registry_free(&registry);
    assert_int_equal(chdir(before), 0);
}

static void plugins_beside_the_config_are_found(void **state)
{
    (void)state;
    make_folder("project");
    make_folder("project/plugins");
    copy_module("good", "project/plugins/good.so");
    struct fuse_registry *registry = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_registry_new(NULL, 0, in_root("project"), &registry, &error), FUSERUN_OK);
    expect_file(registry, FUSERUN_KIND_OPTIMIZER, "good", in_root("project/plugins/good.so"));
    fuse_registry_free(&registry);
}

static void shipped_plugins_are_found_and_standard(void **state)
{
    (void)state;
    static const struct {
        enum fuse_kind kind;
        const char *name;
    } cases[] = {{FUSERUN_KIND_OPTIMIZER, "sgd"},    {FUSERUN_KIND_OPTIMIZER, "adam"},
                 {FUSERUN_KIND_OPTIMIZER, "adamw"},  {FUSERUN_KIND_SCHEDULER, "constant"},
                 {FUSERUN_KIND_SCHEDULER, "cosine"}, {FUSERUN_KIND_DATASET, "idx"},
                 {FUSERUN_KIND_DATASET, "tensors"}};
    struct fuse_registry *registry = registry_of(NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct fuse_component *component;
        const char *file;
        struct fuse_error error = FUSE_ERROR_INIT;
        if (fuse_registry_find(registry, cases[i].kind, cases[i].name, &component, &file, &error) != FUSERUN_OK)
            fail_msg("%s", error.text);
        assert_string_equal(component->name, cases[i].name);
        assert_true(fuse_registry_is_standard(registry, file));
    }
    assert_int_equal(fuse_registry_notice_count(registry), 0);
    fuse_registry_free(&registry);
}

/* ---- all of them, and the host ------------------------------------------------------------------------------------
 */

struct visited {
    size_t good;
    size_t broken;
};

static void visit(void *user, const struct fuse_plugin *plugin, const struct fuse_component *component,
                  const char *file)
{
    struct visited *visited = user;
    if (strncmp(file, root, strlen(root)) != 0)
        return; /* what the build holds is not this test's */
    assert_string_equal(plugin->version, "1.2.3");
    assert_string_equal(component->name, "good");
    visited->good++;
}
static void visit_broken(void *user, const char *file, const struct fuse_error *error)
{
    struct visited *visited = user;
    if (strncmp(file, root, strlen(root)) != 0)
        fail_msg("%s", error->text);
    assert_int_equal(error->code, FUSERUN_ERROR_PLUGIN);
    visited->broken++;
}

static void visiting_loads_everything(void **state)
{
    (void)state;
    make_folder("all");
    make_folder("all/models");
    copy_module("good", "all/good.so");
    copy_module("magic", "all/magic.so");
    write_file("all/models/net.so", "text", 4);
    write_file("all/models/notes.txt", "text", 4);
    struct fuse_registry *registry = registry_of(in_root("all"), NULL);
    for (int i = 0; i < 2; i++) {
        struct visited visited = {0};
        const struct fuse_registry_visitor visitor = {visit, visit_broken, &visited};
        struct fuse_error error = FUSE_ERROR_INIT;
        assert_int_equal(fuse_registry_visit_all(registry, &visitor, &error), FUSERUN_OK);
        assert_int_equal(visited.good, 2);
        assert_int_equal(visited.broken, 2);
    }
    fuse_registry_free(&registry);
}

static double doubled(const struct fuse_schedule *schedule, const struct fuse_schedule_query *query)
{
    (void)schedule;
    return query->base * 2;
}

static void host_services_work(void **state)
{
    (void)state;
    const struct fuse_host *host = fuse_host();
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal((host->fail)(&error, FUSERUN_ERROR_DATA, "file", "%d of %s", 3, "four"), FUSERUN_ERROR_DATA);
    assert_string_equal(error.text, "3 of four");
    assert_string_equal(error.key, "file");
    /* Without a schedule being made, the schedule services fail cleanly. */
    const struct fuse_schedule_context context = {.struct_size = sizeof context};
    const struct fuse_schedule_query query = {.base = 3.0};
    struct fuse_schedule *schedule = (struct fuse_schedule *)&error;
    assert_int_equal(host->schedule_create(&context, "main", 10, &schedule, &error), FUSERUN_ERROR_UNSUPPORTED);
    assert_null(schedule);
    assert_true(host->schedule_value(NULL, &query) == 3.0);
    assert_int_equal(host->schedule_cycles_momentum(NULL), 0);
    const struct fuse_schedule_services services = {.value = doubled};
    fuse_host_set_schedule_services(&services);
    assert_true(host->schedule_value(NULL, &query) == 6.0);
    fuse_host_set_schedule_services(NULL);
    float whole[8], part[3];
    host->random_uniform(7, 1, 0, whole, 8);
    host->random_uniform(7, 1, 5, part, 3);
    assert_memory_equal(whole + 5, part, sizeof part);
    assert_non_null(host->get_service("fuserun.safetensors/1"));
    assert_null(host->get_service("fuserun.safetensors/99"));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: %s FOLDER_OF_MODULES\n", argv[0]);
        return 2;
    }
    modules = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_plugins_give_one_line_each),
        cmocka_unit_test(broken_files_give_one_line_each),
        cmocka_unit_test(truncation_never_crashes),
        cmocka_unit_test(older_and_later_structs_work),
        cmocka_unit_test(rule_forms_agree),
        cmocka_unit_test(first_fitting_file_wins_and_says_so),
        cmocka_unit_test(a_file_of_another_kind_is_passed_over),
        cmocka_unit_test(unknown_names_are_refused_with_what_is_known),
        cmocka_unit_test(the_working_directory_is_not_searched),
        cmocka_unit_test(plugins_beside_the_config_are_found),
        cmocka_unit_test(shipped_plugins_are_found_and_standard),
        cmocka_unit_test(visiting_loads_everything),
        cmocka_unit_test(host_services_work),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
