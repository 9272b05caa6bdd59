/* What a config's values are, and that the resolved config says the same. */
#include "config_case.h"

#include "base/number.h"

#include <math.h>

static const struct fuse_options *options_of(const struct outcome *outcome, const char *section)
{
    const struct fuse_options *options = fuse_config_options(outcome->config, section);
    assert_non_null(options);
    return options;
}

static void defaults(void **state)
{
    (void)state;
    write_text("plain.ini", GOOD);
    struct outcome outcome = read_good("plain.ini", NULL);
    const struct fuse_options *run = options_of(&outcome, "run");
    char *working_folder = getcwd(NULL, 0);
    char *output = fuse_format("%s/runs/plain", working_folder);
    assert_string_equal(fuse_option_text(run, "name"), "plain");
    assert_string_equal(fuse_option_text(run, "output"), output);
    assert_string_equal(fuse_config_folder(outcome.config), working_folder);
    assert_int_equal(fuse_option_integer(run, "steps"), 5);
    assert_false(fuse_option_is_set(run, "epochs"));
    assert_int_equal(fuse_option_integer(run, "epochs"), 0);
    assert_int_equal(fuse_option_integer(run, "seed"), 0);
    assert_true(fuse_option_is_set(run, "seed"));
    assert_false(fuse_option_bool(run, "overwrite"));
    assert_string_equal(fuse_option_text(run, "device"), "auto");
    assert_string_equal(fuse_option_text(run, "resume"), "auto");
    assert_string_equal(fuse_option_text(run, "nonfinite"), "stop");
    const struct fuse_options *data = options_of(&outcome, "data");
    assert_int_equal(fuse_option_integer(data, "batch_size"), 1);
    assert_true(fuse_option_bool(data, "shuffle"));
    assert_false(fuse_option_bool(data, "drop_last"));
    assert_int_equal(fuse_option_integer(data, "length"), 100);
    assert_string_equal(fuse_option_text(options_of(&outcome, "loss"), "kind"), "cross_entropy");
    assert_string_equal(fuse_option_text(options_of(&outcome, "optimizer"), "mode"), "fused");
    assert_true(fuse_option_number(options_of(&outcome, "optimizer"), "lr") == 1e-3);
    assert_true(fuse_option_bool(options_of(&outcome, "model"), "strict"));
    assert_true(fuse_option_bool(options_of(&outcome, "memory"), "timeline"));
    assert_int_equal(fuse_option_integer(options_of(&outcome, "checkpoint"), "keep"), 3);
    assert_false(fuse_option_is_set(options_of(&outcome, "checkpoint"), "every"));
    assert_null(fuse_config_options(outcome.config, "eval"));
    assert_null(fuse_config_options(outcome.config, "scheduler"));
    assert_null(fuse_config_component(outcome.config, "run"));
    assert_string_equal(fuse_config_component(outcome.config, "optimizer")->name, "adam");
    assert_int_equal(fuse_config_group_count(outcome.config), 0);
    /* Keys that nobody declared, and types that do not fit. */
    assert_false(fuse_option_is_set(run, "nonsense"));
    assert_null(fuse_option_text(run, "steps"));
    assert_int_equal(fuse_option_integer(NULL, "steps"), 0);
    free(output);
    free(working_folder);
    end_outcome(&outcome);
}

static void grammar(void **state)
{
    (void)state;
    write_text("x.ini", "\xEF\xBB\xBF; a comment\r\n"
                        "[ run ] ; the run\r\n"
                        "\tsteps=5\r\n"); /* an indented line is an error, also after a header */
    struct outcome outcome = read_config("x.ini", NULL);
    assert_non_null(strstr(outcome.said, "x.ini:3: run.steps: the line is indented"));
    end_outcome(&outcome);
    write_text("x.ini", "\xEF\xBB\xBF# a comment\r\n"
                        "   ; an indented one\r\n"
                        "[ run ]\t; the run\r\n"
                        "steps\t=  7\t# seven\r\n"
                        "name = a;b#c = d:e  ; f\r\n"
                        "output = \"x ; y, z\"  # quoted\r\n"
                        "[model]\r\n"
                        "plugin=mlp\r\n"
                        "sizes = 2,\r\n"
                        "  3 ; three\r\n"
                        "\r\n"
                        "  # between\r\n"
                        "\t4\r\n"
                        "freeze =\r\n"
                        "  a*, \"b, ; c\"\r\n"
                        "  \"say \"\"hi\"\"\"\r\n"
                        "[data]\n"
                        "plugin = noise\n"
                        "batch_size = ; the default\n"
                        "[optimizer]\n"
                        "plugin = adam\n"
                        "lr = \"5E-4\"\n"
                        "amsgrad = on"); /* no line's end */
    outcome = read_good("x.ini", NULL);
    const struct fuse_options *run = options_of(&outcome, "run");
    char *working_folder = getcwd(NULL, 0);
    char *output = fuse_format("%s/x ; y, z", working_folder);
    assert_int_equal(fuse_option_integer(run, "steps"), 7);
    assert_string_equal(fuse_option_text(run, "name"), "a;b#c = d:e");
    assert_string_equal(fuse_option_text(run, "output"), output);
    size_t count = 0;
    const int64_t *sizes = fuse_option_integers(options_of(&outcome, "model"), "sizes", &count);
    assert_int_equal(count, 3);
    assert_int_equal(sizes[0] * 100 + sizes[1] * 10 + sizes[2], 234);
    const char *const *freeze = fuse_option_texts(options_of(&outcome, "model"), "freeze", &count);
    assert_int_equal(count, 3);
    assert_string_equal(freeze[0], "a*");
    assert_string_equal(freeze[1], "b, ; c");
    assert_string_equal(freeze[2], "say \"hi\"");
    assert_int_equal(fuse_option_integer(options_of(&outcome, "data"), "batch_size"), 1);
    assert_true(fuse_option_number(options_of(&outcome, "optimizer"), "lr") == 5e-4);
    assert_true(fuse_option_bool(options_of(&outcome, "optimizer"), "amsgrad"));
    free(output);
    free(working_folder);
    end_outcome(&outcome);
}

static void overrides_win_and_reset(void **state)
{
    (void)state;
    write_text("x.ini", GOOD "lr = 0.5\neps = 3\n[group no_decay]\nmatch = *bias\n[scheduler]\nplugin = sequential\n"
                             "stages = main\n[scheduler.main]\nplugin = cosine\nt_max = 9\n");
    const char *const overrides[] = {"optimizer.lr=",
                                     "group no_decay.lr=1e-5",
                                     "scheduler.main.t_max=5",
                                     " run . name = a b ; c = d ",
                                     "run.epochs=4",
                                     "run.resume=runs/a",
                                     NULL};
    struct outcome outcome = read_good("x.ini", overrides);
    char *working_folder = getcwd(NULL, 0);
    char *resume = fuse_format("%s/runs/a", working_folder);
    assert_string_equal(fuse_option_text(options_of(&outcome, "run"), "resume"), resume);
    free(resume);
    free(working_folder);
    assert_true(fuse_option_number(options_of(&outcome, "optimizer"), "lr") == 1e-3);
    assert_true(fuse_option_number(options_of(&outcome, "optimizer"), "eps") == 3);
    const struct fuse_config_group *group = fuse_config_group(outcome.config, 0);
    assert_true(fuse_option_number(group->options, "lr") == 1e-5);
    assert_true(fuse_option_number(group->options, "eps") == 3);
    assert_int_equal(fuse_option_integer(options_of(&outcome, "scheduler.main"), "t_max"), 5);
    assert_false(fuse_option_is_set(options_of(&outcome, "run"), "steps"));
    assert_int_equal(fuse_option_integer(options_of(&outcome, "run"), "epochs"), 4);
    /* A command line has no comments. */
    assert_string_equal(fuse_option_text(options_of(&outcome, "run"), "name"), "a b ; c = d");
    end_outcome(&outcome);
}

static void groups_inherit(void **state)
{
    (void)state;
    write_text("base.ini", "[run]\nsteps = 1\n[group first]\nmatch = a\n");
    write_text("x.ini", "[run]\ninclude = base.ini\n[group second]\nmatch = *bias, *.ln*.weight\nweight_decay = 0\n"
                        "[group third]\nmatch = c\nplugin = sgd\n[group fourth]\nmatch = d\nplugin = adam\n"
                        "[optimizer]\nplugin = adam\nlr = 0.25\nweight_decay = 0.5\nbetas = 0.1, 0.2\n"
                        "[model]\nplugin = mlp\nsizes = 1\n[data]\nplugin = noise\n");
    struct outcome outcome = read_good("x.ini", NULL);
    static const char *const names[] = {"first", "second", "third", "fourth"};
    static const double decays[] = {0.5, 0, 0, 0.5};
    assert_int_equal(fuse_config_group_count(outcome.config), 4);
    for (size_t i = 0; i < 4; i++) {
        const struct fuse_config_group *group = fuse_config_group(outcome.config, i);
        assert_string_equal(group->name, names[i]);
        assert_string_equal(group->component->name, i == 2 ? "sgd" : "adam");
        assert_true(fuse_option_number(group->options, "lr") == 0.25);
        assert_true(fuse_option_number(group->options, "weight_decay") == decays[i]); /* only lr between optimizers */
        size_t count = 0;
        const double *betas = fuse_option_numbers(group->options, "betas", &count);
        assert_int_equal(count, i == 2 ? 0 : 2);
        assert_true(i == 2 || betas[1] == 0.2);
    }
    assert_int_equal(fuse_config_group(outcome.config, 1)->match_count, 2);
    assert_string_equal(fuse_config_group(outcome.config, 1)->match[1], "*.ln*.weight");
    assert_null(fuse_config_group(outcome.config, 4));
    end_outcome(&outcome);
}

static void eval_inherits(void **state)
{
    (void)state;
    write_text("x.ini",
               "[run]\nsteps = 1\n[model]\nplugin = mlp\nsizes = 1\n[optimizer]\nplugin = adam\n"
               "[data]\nplugin = tensors\nfile = train\ncache = 1MiB\nbatch_size = 8\ndrop_last = yes\n[eval]\n");
    static const char *const other_file[] = {"eval.file=test", "eval.every=50 steps", "eval.shuffle=yes", NULL};
    static const char *const other_plugin[] = {"eval.plugin=noise", "eval.batch_size=3", NULL};
    char *working_folder = getcwd(NULL, 0);
    char *train = fuse_format("%s/train", working_folder), *test = fuse_format("%s/test", working_folder);

    struct outcome outcome = read_good("x.ini", NULL);
    const struct fuse_options *eval = options_of(&outcome, "eval");
    assert_string_equal(fuse_option_text(eval, "file"), train);
    assert_int_equal(fuse_option_integer(eval, "cache"), 1 << 20);
    assert_int_equal(fuse_option_integer(eval, "batch_size"), 8);
    assert_false(fuse_option_bool(eval, "shuffle"));
    assert_false(fuse_option_bool(eval, "drop_last"));
    assert_int_equal(fuse_option_integer(eval, "every"), 1);
    assert_string_equal(fuse_option_text(eval, "every"), "epoch");
    end_outcome(&outcome);

    outcome = read_good("x.ini", other_file);
    eval = options_of(&outcome, "eval");
    assert_string_equal(fuse_option_text(eval, "file"), test);
    assert_int_equal(fuse_option_integer(eval, "every"), 50);
    assert_string_equal(fuse_option_text(eval, "every"), "step");
    assert_true(fuse_option_bool(eval, "shuffle"));
    end_outcome(&outcome);

    outcome = read_good("x.ini", other_plugin);
    eval = options_of(&outcome, "eval");
    assert_string_equal(fuse_config_component(outcome.config, "eval")->name, "noise");
    assert_int_equal(fuse_option_integer(eval, "batch_size"), 3);
    assert_int_equal(fuse_option_integer(eval, "length"), 100);
    assert_false(fuse_option_is_set(eval, "file"));
    end_outcome(&outcome);
    free(train);
    free(test);
    free(working_folder);
}

static void paths_and_expansion(void **state)
{
    (void)state;
    assert_int_equal(system("mkdir -p lib here"), 0);
    assert_int_equal(setenv("FUSE_TEST_FOLDER", "/data, x", 1), 0);
    write_text("lib/base.ini",
               "[data]\nplugin = tensors\nfile = d/${run.name}.st\n[plugins]\npath = p, ./q, /abs\n"
               "[optimizer]\nplugin = my/adam.so\nlr = ${scheduler.t_max}e-3\n[eval]\nfile = ${data.file}\n");
    write_text("here/exp.ini", "[run]\ninclude = ../lib/base.ini\nsteps = 1\nname = n-${optimizer.eps}\noutput = out\n"
                               "[model]\nplugin = mlp\nsizes = ${run.steps}, 2\n"
                               "freeze = \"${env:FUSE_TEST_FOLDER}\", ${env:FUSE_TEST_FOLDER}\n"
                               "[scheduler]\nplugin = cosine\nt_max = 2\n[loss]\nlabel_smoothing = ${optimizer.eps}\n");
    char *root = getcwd(NULL, 0);
    struct outcome outcome = read_good("here/exp.ini", NULL);
    struct fuse_text expected = {0};
    fuse_text_addf(&expected, "%s/lib/d/n-1e-8.st", root);
    if (fuse_option_text(options_of(&outcome, "data"), "file")[0] != '/')
        fail();
    /* Relative to the file that holds it, wherever it is referred to. */
    char *lib = fuse_format("%s/here/../lib", root), *real_lib = realpath(lib, NULL);
    char *file = fuse_format("%s/d/n-1e-8.st", real_lib), *output = fuse_format("%s/out", root);
    char *folder = fuse_format("%s/here", root), *plugin_folder = fuse_format("%s/q", real_lib);
    assert_string_equal(fuse_option_text(options_of(&outcome, "data"), "file"), file);
    assert_string_equal(fuse_option_text(options_of(&outcome, "eval"), "file"), file);
    assert_string_equal(fuse_option_text(options_of(&outcome, "run"), "output"), output); /* to the working directory */
    assert_string_equal(fuse_config_folder(outcome.config), folder);
    assert_true(fuse_option_number(options_of(&outcome, "optimizer"), "lr") == 2e-3);
    assert_true(fuse_option_number(options_of(&outcome, "loss"), "label_smoothing") == 1e-8);
    size_t count = 0;
    const char *const *path = fuse_config_plugin_path(outcome.config, &count);
    assert_int_equal(count, 3);
    assert_string_equal(path[1], plugin_folder);
    assert_string_equal(path[2], "/abs");
    const char *const *freeze = fuse_option_texts(options_of(&outcome, "model"), "freeze", &count);
    assert_int_equal(count, 3); /* in quotes it stands as it is, and is one element */
    assert_string_equal(freeze[0], "${env:FUSE_TEST_FOLDER}");
    assert_string_equal(freeze[1], "/data");
    assert_string_equal(freeze[2], "x");
    struct fuse_text written = {0};
    fuse_config_write(outcome.config, &written);
    char *plugin_line = fuse_format("plugin = %s/my/adam.so\n", real_lib);
    assert_non_null(strstr(written.data, plugin_line)); /* dropped in: by its file */
    assert_non_null(strstr(written.data, "plugin = mlp\n"));
    fuse_text_free(&written);
    fuse_text_free(&expected);
    free(plugin_line);
    free(plugin_folder);
    free(folder);
    free(output);
    free(file);
    free(real_lib);
    free(lib);
    free(root);
    end_outcome(&outcome);
    /* As a part of a value, a quoted one comes without its quotes; as the whole value, with them. */
    static const char *const overrides[] = {"run.name=\"a, b\"", "run.output=/o/${run.name}",
                                            "model.freeze=${run.name}", NULL};
    write_text("x.ini", GOOD);
    outcome = read_good("x.ini", overrides);
    assert_string_equal(fuse_option_text(options_of(&outcome, "run"), "output"), "/o/a, b");
    assert_string_equal(fuse_option_texts(options_of(&outcome, "model"), "freeze", &count)[0], "a, b");
    assert_int_equal(count, 1);
    end_outcome(&outcome);
}

/* A resolved config says the same when it is read again, from another folder. */
static void resolved_config_reads_back(void **state)
{
    (void)state;
    assert_int_equal(system("mkdir -p elsewhere"), 0);
    write_text("x.ini",
               "[run]\nepochs = 3\nname = \"a \"\" ; #, ${x} b\"\nseed = 9223372036854775807\n[plugins]\npath = "
               "\"a, b\", c\n"
               "[model]\nplugin = mlp\nsizes = 2, 3\nfreeze = \"a, b\", \" c \", \"\"\"\", \"#x\"\n"
               "[data]\nplugin = tensors\nfile = \"x;y z.st\"\n[eval]\nevery = 7\n"
               "[optimizer]\nplugin = dropped/adam.so\nlr = 0.1234567890123456789\neps = 1e-30\n"
               "[group g h.i]\nmatch = \"x y\"\n[scheduler]\nplugin = sequential\nstages = a\ndrives = beta1, lr\n"
               "unit = epoch\n[scheduler.a]\nplugin = cosine\nlimits = 0.1, none\n"
               "[scheduler weight_decay]\nplugin = constant\n");
    struct outcome first = read_good("x.ini", NULL);
    struct fuse_text written = {0}, again = {0};
    fuse_config_write(first.config, &written);
    assert_false(written.failed);
    assert_non_null(strstr(written.data, "\nresume = never\n"));
    assert_non_null(strstr(written.data, "\noverwrite = yes\n"));
    assert_non_null(strstr(written.data, "\nepochs = 3\n"));
    assert_null(strstr(written.data, "\nsteps"));
    assert_non_null(strstr(written.data, "\nlr = 0.12345678901234568\n"));
    write_text("elsewhere/config.ini", written.data);
    assert_int_equal(chdir("elsewhere"), 0);
    struct outcome second = read_good("config.ini", NULL);
    assert_int_equal(chdir(".."), 0);
    fuse_config_write(second.config, &again);
    assert_string_equal(again.data, written.data);
    assert_string_equal(fuse_option_text(options_of(&second, "run"), "name"), "a \" ; #, ${x} b");
    assert_int_equal(fuse_option_integer(options_of(&second, "run"), "seed"), INT64_MAX);
    assert_true(isnan(fuse_option_numbers(options_of(&second, "scheduler.a"), "limits", &(size_t){0})[1]));
    size_t count = 0;
    const char *const *freeze = fuse_option_texts(options_of(&second, "model"), "freeze", &count);
    assert_int_equal(count, 4);
    assert_string_equal(freeze[1], " c ");
    assert_string_equal(freeze[2], "\"");
    assert_string_equal(freeze[3], "#x");
    assert_int_equal(fuse_config_scheduler_count(second.config), 1);
    assert_string_equal(fuse_config_scheduler_option(second.config, 0), "weight_decay");
    fuse_text_free(&written);
    fuse_text_free(&again);
    end_outcome(&first);
    end_outcome(&second);
}

/* ---- options without a config
 * ------------------------------------------------------------------------------------------ */

static const struct fuse_component *component_named(const char *name)
{
    for (int i = 0; i < FAKE_COMPONENT_COUNT; i++)
        if (strcmp(fake_components[i].name, name) == 0)
            return &fake_components[i];
    fail();
    return NULL;
}

static void options_from_pairs(void **state)
{
    (void)state;
    static const char *const pairs[] = {"betas=0.5, 0.75", "lr = .5", "amsgrad=yes", "eps="};
    struct fuse_options *options = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_options_from_pairs(component_named("adam"), pairs, 4, &options, &error), FUSERUN_OK);
    assert_true(fuse_option_number(options, "lr") == 0.5);
    assert_true(fuse_option_number(options, "eps") == 1e-8);
    assert_true(fuse_option_bool(options, "amsgrad"));
    double flat[6] = {-1, -1, -1, -1, -1, -1};
    static const double expected[6] = {0.5, 0.5, 0.75, 1e-8, 0, 1};
    assert_int_equal(fuse_options_flatten(component_named("adam"), options, flat, 6), 6);
    assert_memory_equal(flat, expected, sizeof(flat));
    flat[2] = -1;
    assert_int_equal(fuse_options_flatten(component_named("adam"), options, flat, 2), 6);
    assert_true(flat[2] == -1); /* nothing past the capacity */
    fuse_options_free(&options);
    assert_null(options);

    static const struct {
        const char *component, *pair, *key, *text;
    } wrong[] = {
        {"adam", "lrr=1", "lrr", "unknown key 'lrr'"},
        {"adam", "lr", "", "'lr' is not key=value"},
        {"adam", "lr=x", "lr", "'x' is not a number in [0, inf)"},
        {"adam", "betas=1", "betas", "2 values are needed (beta1, beta2), 1 given"},
        {"mlp", "activation=gelu", "sizes", "missing"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(
            fuse_options_from_pairs(component_named(wrong[i].component), &wrong[i].pair, 1, &options, &error),
            FUSERUN_ERROR_CONFIG);
        assert_string_equal(error.key, wrong[i].key);
        assert_string_equal(error.text, wrong[i].text);
        assert_null(options);
    }
}

static void flat_indices(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int index;
        bool is_schedulable;
    } cases[] = {{"lr", 0, true},           {"beta1", 1, true},    {"beta2", 2, true},   {"eps", 3, false},
                 {"weight_decay", 4, true}, {"amsgrad", 5, false}, {"betas", -1, false}, {"beta", -1, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool is_schedulable = false;
        assert_int_equal(fuse_options_flat_index(component_named("adam"), cases[i].name, &is_schedulable),
                         cases[i].index);
        assert_int_equal(is_schedulable, cases[i].is_schedulable);
    }
    assert_int_equal(fuse_options_flat_index(component_named("adam"), "lr", NULL), 0);
}

/* A plugin made with older headers knows fewer fields; what it lacks reads as zero. */
static void options_of_an_older_plugin(void **state)
{
    (void)state;
    struct old_option {
        uint32_t struct_size, type, flags, list_count;
        const char *key, *default_text;
    };
    static const struct old_option old[] = {
        {sizeof(struct old_option), FUSERUN_OPTION_NUMBER, 0, 0, "lr", "0.5"},
        {sizeof(struct old_option), FUSERUN_OPTION_INTEGER, 0, 0, "count", "3"},
    };
    const struct fuse_component component = {FUSERUN_STRUCT_SIZE(fuse_component, api),
                                             FUSERUN_KIND_OPTIMIZER,
                                             "old",
                                             NULL,
                                             0,
                                             (const struct fuse_option *)(const void *)old,
                                             2,
                                             sizeof(struct old_option),
                                             NULL};
    struct fuse_options *options = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    assert_int_equal(fuse_options_from_pairs(&component, NULL, 0, &options, &error), FUSERUN_OK);
    assert_true(fuse_option_number(options, "lr") == 0.5);
    assert_int_equal(fuse_option_integer(options, "count"), 3);
    fuse_options_free(&options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(grammar),
        cmocka_unit_test(overrides_win_and_reset),
        cmocka_unit_test(groups_inherit),
        cmocka_unit_test(eval_inherits),
        cmocka_unit_test(paths_and_expansion),
        cmocka_unit_test(resolved_config_reads_back),
        cmocka_unit_test(options_from_pairs),
        cmocka_unit_test(flat_indices),
        cmocka_unit_test(options_of_an_older_plugin),
    };
    return cmocka_run_group_tests_name("config values", tests, enter_temporary_folder, leave_temporary_folder);
}
