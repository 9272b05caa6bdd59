/* What the config reader says about mistakes: exact texts. */
#include "config_case.h"

#include <fcntl.h>

#define TAKES_ADAM                                                                                                     \
    "[optimizer] takes plugin, mode, accumulate, clip_grad_norm, clip_grad_value, clip_grad_norm_per_parameter, "      \
    "clip_algorithm, log_grad_norm, lr, betas, eps, "                                                                  \
    "weight_decay, amsgrad"
#define ROLES                                                                                                          \
    "there are run, plugins, model, data, eval, loss, optimizer, group NAME, scheduler, scheduler.NAME, memory, "      \
    "checkpoint"

struct message_case {
    const char *text;
    const char *overrides[4];
    const char *said;
};

static void check_cases(const struct message_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_said(cases[i].text, cases[i].overrides, cases[i].said);
}
#define CHECK_CASES(cases) check_cases((cases), sizeof(cases) / sizeof((cases)[0]))

static void row_39_misspelt_keys_and_sections(void **state)
{
    (void)state;
    static const struct message_case cases[] = {
        {GOOD "learing_rate = 1e-3\n",
         {NULL},
         "x.ini:10: optimizer.learing_rate: unknown key; " TAKES_ADAM " (did you mean 'lr'?)\n"},
        {GOOD "weigth_decay = 0\n",
         {NULL},
         "x.ini:10: optimizer.weigth_decay: unknown key; " TAKES_ADAM " (did you mean 'weight_decay'?)\n"},
        {GOOD "dropout = 0\n", {NULL}, "x.ini:10: optimizer.dropout: unknown key; " TAKES_ADAM "\n"},
        {GOOD "lr = 1\nlr = 2\n", {NULL}, "x.ini:11: optimizer.lr: the key stands twice, first on line 10\n"},
        {GOOD "[los]\nkind = x\n", {NULL}, "x.ini:10: los: unknown section (did you mean 'loss'?)\n"},
        {GOOD "[grup no_decay]\nkind = x\n",
         {NULL},
         "x.ini:10: grup no_decay: unknown section (did you mean 'group no_decay'?)\n"},
        {GOOD "[banana]\n", {NULL}, "x.ini:10: banana: unknown section; " ROLES "\n"},
        {GOOD "[group]\n", {NULL}, "x.ini:10: group: unknown section; " ROLES "\n"},
        {GOOD "[run]\nseed = 1\nsteps = 3\n", {NULL}, "x.ini:10: run: the section stands twice, first on line 1\n"},
        {GOOD, {"optimizer.lrr=1"}, "command line: optimizer.lrr: unknown key; " TAKES_ADAM " (did you mean 'lr'?)\n"},
        {GOOD, {"optimzer.lr=1"}, "command line: optimzer: unknown section (did you mean 'optimizer'?)\n"},
        {GOOD, {"optimizer.lr=1", "optimizer.lr=2"}, "command line: optimizer.lr: the key stands twice\n"},
        {GOOD,
         {"lr=1", "lr", "optimizer.=1"},
         "command line: lr: an override reads section.key=value (optimizer.lr=1e-4)\n"
         "command line: lr: an override reads section.key=value (optimizer.lr=1e-4)\n"
         "command line: optimizer.: an override reads section.key=value (optimizer.lr=1e-4)\n"},
    };
    CHECK_CASES(cases);
}

static void five_mistakes_give_five_errors(void **state)
{
    (void)state;
    assert_said("[run]\n"
                "steps = many\n"
                "[model]\n"
                "plugin = mlp\n"
                "sizes = 64, 0\n"
                "[data]\n"
                "plugin = nonsense\n"
                "whatever = 3\n"
                "[optimizer]\n"
                "plugin = adam\n"
                "learing_rate = 1e-3\n"
                "mode = fuse\n",
                NULL,
                "x.ini:2: run.steps: 'many' is not an integer in [1, inf)\n"
                "x.ini:5: model.sizes: '0' is out of range; it must be an integer in [1, inf)\n"
                "x.ini:7: data.plugin: no plugin 'nonsense'\n"
                "x.ini:11: optimizer.learing_rate: unknown key; " TAKES_ADAM " (did you mean 'lr'?)\n"
                "x.ini:12: optimizer.mode: 'fuse' is not one of fused, per_param, foreach (did you mean 'fused'?)\n");
}

static void missing_things(void **state)
{
    (void)state;
    static const struct message_case cases[] = {
        {"",
         {NULL},
         "x.ini:1: run: the section is missing; it names steps or epochs\n"
         "x.ini:1: model: the section is missing; it names a plugin\n"
         "x.ini:1: data: the section is missing; it names a plugin\n"
         "x.ini:1: optimizer: the section is missing; it names a plugin\n"},
        /* A misspelt section is one mistake, as is a header that cannot be read. */
        {"[run]\nsteps = 1\n[modle]\nplugin = mlp\n[data]\nplugin = noise\n[optimizer]\nplugin = adam\n",
         {NULL},
         "x.ini:3: modle: unknown section (did you mean 'model'?)\n"},
        {"[run]\nsteps = 1\n[model\nplugin = mlp\n  sizes = 3\nnonsense\n[data]\nplugin = noise\n[optimizer]\nplugin = "
         "adam\n",
         {NULL},
         "x.ini:3: a section's name ends with ']'\n"},
        {"[run]\n\n[model]\n# nothing\n[data]\nplugin = noise\n[optimizer]\nplugin = adam\n",
         {NULL},
         "x.ini:1: run.steps: the key is missing; set steps or epochs\n"
         "x.ini:3: model.plugin: the key is missing (a name on the search path, or a path that ends in .so)\n"},
        {"[run]\nstpes = 1\n[model]\nplugn = mlp\n[data]\nplugin = noise\n[optimizer]\nplugin = adam\n",
         {NULL},
         "x.ini:2: run.stpes: unknown key; [run] takes name, output, overwrite, steps, epochs, seed, device, "
         "precision, "
         "threads, resume, resume_strict, nonfinite, tf32, progress, profile, include (did you mean 'steps'?)\n"
         "x.ini:3: model.plugin: the key is missing (a name on the search path, or a path that ends in .so)\n"},
        {"[run]\nsteps = 1\n[model]\nplugin = mlp\n[data]\nplugin = tensors\n[optimizer]\nplugin = adam\n[group a]\nlr "
         "= "
         "1\n",
         {NULL},
         "x.ini:3: model.sizes: the key is missing (widths of all layers)\n"
         "x.ini:5: data.file: the key is missing (the samples)\n"
         "x.ini:9: group a.match: the key is missing (globs of the group's parameters)\n"},
        {GOOD,
         {"optimizer.plugin="},
         "x.ini:8: optimizer.plugin: the key is missing (a name on the search path, or a path that ends in .so)\n"},
        {GOOD, {"run.steps="}, "x.ini:1: run.steps: the key is missing; set steps or epochs\n"},
    };
    CHECK_CASES(cases);
    struct outcome outcome = read_config("absent.ini", NULL);
    assert_string_equal(outcome.said, "absent.ini: cannot be read: No such file or directory\n");
    assert_null(outcome.config);
    end_outcome(&outcome);
    outcome = read_config("/tmp", NULL);
    assert_string_equal(outcome.said, "/tmp: cannot be read: Is a directory\n");
    end_outcome(&outcome);
}

static void wrong_values(void **state)
{
    (void)state;
    static const struct message_case cases[] = {
        {GOOD "lr = 1e-5x\n", {NULL}, "x.ini:10: optimizer.lr: '1e-5x' is not a number in [0, inf)\n"},
        {GOOD "lr = 3,14\n",
         {NULL},
         "x.ini:10: optimizer.lr: '3,14' is not a number in [0, inf) (the decimal point is '.')\n"},
        {GOOD "lr = 1e-3;x\n",
         {NULL},
         "x.ini:10: optimizer.lr: '1e-3;x' is not a number in [0, inf) (a comment needs white space before its ';' or "
         "'#')\n"},
        {GOOD "lr = -1\n", {NULL}, "x.ini:10: optimizer.lr: '-1' is out of range; it must be a number in [0, inf)\n"},
        {GOOD "lr = inf\n", {NULL}, "x.ini:10: optimizer.lr: 'inf' is out of range; it must be a number in [0, inf)\n"},
        {GOOD "lr = nan\n", {NULL}, "x.ini:10: optimizer.lr: 'nan' is not a number in [0, inf)\n"},
        {GOOD "lr = none\n", {NULL}, "x.ini:10: optimizer.lr: 'none' is not a number in [0, inf)\n"},
        {GOOD "betas = 0.9\n", {NULL}, "x.ini:10: optimizer.betas: 2 values are needed (beta1, beta2), 1 given\n"},
        {GOOD "betas = 0.9, 1\n",
         {NULL},
         "x.ini:10: optimizer.betas: '1' is out of range; it must be a number in [0, 1)\n"},
        {GOOD "betas = 0.9,, 1\n", {NULL}, "x.ini:10: optimizer.betas: an element of the list is empty\n"},
        {GOOD "betas = 0.9, 0.99,\n", {NULL}, "x.ini:10: optimizer.betas: an element of the list is empty\n"},
        {GOOD "amsgrad = maybe\n",
         {NULL},
         "x.ini:10: optimizer.amsgrad: 'maybe' is not yes or no (true/false, on/off, 1/0)\n"},
        {GOOD "amsgrad = Yes\n",
         {NULL},
         "x.ini:10: optimizer.amsgrad: 'Yes' is not yes or no (true/false, on/off, 1/0)\n"},
        {GOOD "[eval]\nevery = 1 day\n",
         {NULL},
         "x.ini:11: eval.every: '1 day' is not a span of at least 1 (100, 100 steps, 1 epoch)\n"},
        {GOOD "[eval]\nevery = 0\n",
         {NULL},
         "x.ini:11: eval.every: '0' is not a span of at least 1 (100, 100 steps, 1 epoch)\n"},
        {GOOD "[eval]\nplugin = tensors\nfile = a\ncache = 3kb\n",
         {NULL},
         "x.ini:13: eval.cache: '3kb' is not a size (4096, 64KiB, 512MiB, 2GiB)\n"},
        {GOOD "[eval]\nplugin = tensors\nfile = a\ncache = 99999999TiB\n",
         {NULL},
         "x.ini:13: eval.cache: '99999999TiB' is not a size (4096, 64KiB, 512MiB, 2GiB)\n"},
        {GOOD "[data]\n",
         {"run.seed=-1"},
         "x.ini:10: data: the section stands twice, first on line 6\n"
         "command line: run.seed: '-1' is out of range; it must be an integer in [0, inf)\n"},
        {GOOD, {"run.steps=1e3"}, "command line: run.steps: '1e3' is not an integer in [1, inf)\n"},
        {GOOD, {"run.device=gpu"}, "command line: run.device: 'gpu' is not one of auto, cpu, cuda, cuda:N\n"},
        {GOOD, {"run.device=cuda:x"}, "command line: run.device: 'cuda:x' is not one of auto, cpu, cuda, cuda:N\n"},
        {GOOD,
         {"run.epochs=2", "run.steps=3"},
         "command line: run.steps: 'epochs' is set too; exactly one of the two\n"},
        {GOOD "[loss]\nkind = mse\nlabel_smoothing = 0.1\n",
         {NULL},
         "x.ini:12: loss.label_smoothing: only cross_entropy has it, and kind is mse\n"},
        {GOOD "[loss]\nlabel_smoothing = 1.5\n",
         {NULL},
         "x.ini:11: loss.label_smoothing: '1.5' is out of range; it must be a number in [0, 1]\n"},
        {GOOD,
         {"optimizer.plugin=clash"},
         "command line: optimizer.plugin: the plugin declares the option 'mode', which is a key of fuserun's own\n"},
        {GOOD "[group default]\nmatch = *\n",
         {NULL},
         "x.ini:10: group default: 'default' is the group of the parameters that no [group NAME] takes\n"},
        {GOOD "[group a]\nmatch = *\nmode = fused\n",
         {NULL},
         "x.ini:12: group a.mode: the key stands in [optimizer] and holds for all groups\n"},
        /* What a group inherits is told once, where it stands. */
        {GOOD "lr = x\n[group a]\nmatch = *\n[group b]\nmatch = *\n",
         {NULL},
         "x.ini:10: optimizer.lr: 'x' is not a number in [0, inf)\n"},
    };
    CHECK_CASES(cases);
}

static void wrong_lines(void **state)
{
    (void)state;
    static const struct message_case cases[] = {
        {GOOD "lr: 3\n", {NULL}, "x.ini:10: optimizer.lr: the line is not 'key = value' (':' is no separator)\n"},
        {GOOD "lr 3\n", {NULL}, "x.ini:10: optimizer.lr: the line is not 'key = value'\n"},
        {GOOD "= 3\n", {NULL}, "x.ini:10: optimizer: there is no key before the '='\n"},
        {"steps = 1\n" GOOD, {NULL}, "x.ini:1: steps: the key stands before the first [section]\n"},
        {GOOD "lr = \"3\n", {NULL}, "x.ini:10: optimizer.lr: a quote is opened and not closed\n"},
        {GOOD "lr = \"3\" 4\n", {NULL}, "x.ini:10: optimizer.lr: there is text after the closing quote\n"},
        {GOOD "[loss] x\n",
         {NULL},
         "x.ini:10: there is text behind the section's ']' (a comment needs white space "
         "before it)\n"},
        {GOOD "betas = 0.9,\n  0.99\n lr = 3\n",
         {NULL},
         "x.ini:12: optimizer.lr: the line is indented; only a list goes on over indented lines, and without '='\n"},
        {GOOD "lr = 3\n  4\n",
         {NULL},
         "x.ini:11: optimizer.lr: the line is indented, and 'lr' is not a list that could go on\n"},
        {GOOD "[loss]\n  mse\n", {NULL}, "x.ini:11: loss: the line is indented, and no list stands before it\n"},
        {GOOD "betas = 0.9\n  0.99\n\n  0.999 ; three\n",
         {NULL},
         "x.ini:10: optimizer.betas: 2 values are needed (beta1, beta2), 3 given\n"},
        {GOOD "eps = 1\r2\n", {NULL}, "x.ini:10: optimizer: the line holds a control character (0x0d)\n"},
        {GOOD,
         {"run.name=a\nb"},
         "command line: run.name: the value holds a line break or another control character\n"},
    };
    CHECK_CASES(cases);
    static const char with_nul[] = GOOD "eps = 1\0 2\nlr = x\n";
    write_bytes("nul.ini", with_nul, sizeof(with_nul) - 1);
    struct outcome outcome = read_config("nul.ini", NULL);
    assert_string_equal(outcome.said, "nul.ini:10: optimizer: the line holds a control character (0x00)\n"
                                      "nul.ini:11: optimizer.lr: 'x' is not a number in [0, inf)\n");
    end_outcome(&outcome);
}

static void schedules(void **state)
{
    (void)state;
    static const struct message_case cases[] = {
        {GOOD "[scheduler]\nplugin = sequential\nstages = warmp, main\n[scheduler.warmup]\nplugin = linear\n"
              "[scheduler.main]\nplugin = cosine\n",
         {NULL},
         "x.ini:12: scheduler.stages: there is no section [scheduler.warmp] (did you mean 'warmup'?)\n"},
        {GOOD "[scheduler]\nplugin = sequential\nstages = main\n[scheduler.warmup]\nplugin = linear\n[scheduler.main]\n"
              "plugin = cosine\n",
         {NULL},
         "x.ini:13: scheduler.warmup: nothing refers to this section; a `stages` list of a scheduler would\n"},
        {GOOD "[scheduler.warmup]\nplugin = linear\ntotal_iters = 0\n",
         {NULL},
         "x.ini:10: scheduler.warmup: nothing refers to this section; a `stages` list of a scheduler would\n"
         "x.ini:12: scheduler.warmup.total_iters: '0' is out of range; it must be an integer in [1, inf)\n"},
        /* Whatever the unknown plugin would have referred to is not judged. */
        {GOOD "[scheduler]\nplugin = sequentail\nstages = main\n[scheduler.main]\nplugin = cosine\n",
         {NULL},
         "x.ini:11: scheduler.plugin: no plugin 'sequentail'\n"},
        {GOOD "[scheduler]\nplugin = chain\nstages = a, b\n[scheduler.a]\nplugin = chain\nstages = b\n[scheduler.b]\n"
              "plugin = chain\nstages = a\n",
         {NULL},
         "x.ini:18: scheduler.b.stages: [scheduler.a] would be nested in itself\n"},
        {GOOD "[scheduler]\nplugin = chain\nstages = a\n[scheduler.a]\nplugin = constant\nunit = epoch\n",
         {NULL},
         "x.ini:15: scheduler.a.unit: the key stands in [scheduler] and holds for all its stages\n"},
        {GOOD "[scheduler]\nplugin = cosine\ndrives = lr, beta3\n",
         {NULL},
         "x.ini:12: scheduler.drives: the optimizer has no 'beta3' that a schedule may drive; it has lr, beta1, beta2, "
         "weight_decay (did you mean 'beta1'?)\n"},
        {GOOD "[scheduler]\nplugin = cosine\ndrives = eps\n",
         {NULL},
         "x.ini:12: scheduler.drives: the optimizer has no 'eps' that a schedule may drive; it has lr, beta1, beta2, "
         "weight_decay\n"},
        {GOOD "[scheduler]\nplugin = cosine\ndrives = lr, lr\n",
         {NULL},
         "x.ini:12: scheduler.drives: 'lr' is driven twice\n"},
        {GOOD "[scheduler lr]\nplugin = cosine\n[scheduler]\nplugin = cosine\n",
         {NULL},
         "x.ini:10: scheduler lr: 'lr' is driven twice\n"},
        {GOOD "[scheduler momentum]\nplugin = cosine\n",
         {NULL},
         "x.ini:10: scheduler momentum: the optimizer has no 'momentum' that a schedule may drive; it has lr, beta1, "
         "beta2, weight_decay\n"},
        {GOOD "[scheduler beta1]\nplugin = cosine\ndrives = lr\n",
         {NULL},
         "x.ini:12: scheduler beta1.drives: the section's name says that it drives 'beta1'\n"},
        /* Momentum is there to be driven: in a group that has another optimizer. */
        {GOOD "[group a]\nmatch = *\nplugin = sgd\n[scheduler momentum]\nplugin = cosine\n", {NULL}, ""},
    };
    CHECK_CASES(cases);
}

static void values_that_contradict(void **state)
{
    (void)state;
    static const struct message_case cases[] = {
        {GOOD,
         {"optimizer.clip_grad_norm=1", "optimizer.clip_grad_norm_per_parameter=2"},
         "command line: optimizer.clip_grad_norm_per_parameter: 'clip_grad_norm' is set too; one of them at the "
         "most\n"},
        {GOOD,
         {"checkpoint.every=0", "checkpoint.keep=0", "run.resume="},
         "command line: checkpoint.every: '0' is not a span of at least 1 (100, 100 steps, 1 epoch)\n"
         "command line: checkpoint.keep: '0' is out of range; it must be an integer in [1, inf)\n"},
        /* What asks for nothing. */
        {GOOD, {"run.resume=never", "run.device=cuda:0", "optimizer.accumulate=4"}, ""},
        {GOOD, {"optimizer.clip_grad_norm=1", "optimizer.clip_grad_value=", "run.nonfinite=skip"}, ""},
        {GOOD, {"checkpoint.keep=7", "checkpoint.every=1 epoch", "run.precision=bf16"}, ""},
        {GOOD, {"model.weights=w.safetensors", "memory.timeline=no", "optimizer.clip_algorithm=keep"}, ""},
    };
    CHECK_CASES(cases);
}

static void expansion(void **state)
{
    (void)state;
    assert_int_equal(setenv("FUSE_TEST_BREAK", "a\nb", 1), 0);
    assert_int_equal(unsetenv("FUSE_TEST_NONE"), 0);
    static const struct message_case cases[] = {
        {GOOD, {"run.name=${run.name}"}, "command line: run.name: the value refers to itself: ${run.name}\n"},
        {GOOD,
         {"run.name=${run.output}", "run.output=${run.name}/x"},
         "command line: run.name: the value refers to itself: ${run.output}\n"},
        {GOOD,
         {"run.name=${optimizer.lrr}"},
         "command line: run.name: ${optimizer.lrr}: no such key (did you mean 'lr'?)\n"},
        {GOOD, {"run.name=${foo.bar}"}, "command line: run.name: ${foo.bar}: there is no section [foo]\n"},
        {GOOD,
         {"run.name=${bar}"},
         "command line: run.name: ${bar}: a reference reads ${section.key} or ${env:NAME}\n"},
        {GOOD, {"run.name=${run.epochs}"}, "command line: run.name: ${run.epochs}: the key has no value\n"},
        {GOOD,
         {"run.name=${run.steps"},
         "command line: run.name: '${' has no closing '}' (in double quotes it stands for itself)\n"},
        {GOOD,
         {"run.name=${env:FUSE_TEST_NONE}"},
         "command line: run.name: ${env:FUSE_TEST_NONE}: the environment variable is not set\n"},
        {GOOD,
         {"run.name=${env:FUSE_TEST_BREAK}"},
         "command line: run.name: ${env:FUSE_TEST_BREAK}: the value holds a line break or another control "
         "character\n"},
        /* What refers to a mistake is not one itself. */
        {GOOD,
         {"run.name=${optimizer.lr}", "optimizer.lr=${optimizer.eps}", "optimizer.eps=${env:FUSE_TEST_NONE}"},
         "command line: optimizer.eps: ${env:FUSE_TEST_NONE}: the environment variable is not set\n"},
    };
    CHECK_CASES(cases);
    struct fuse_text deep = {0};
    fuse_text_add(&deep, GOOD "[group a]\nmatch = *\n[group b]\nmatch = *\n");
    for (int i = 0; i < 100; i++)
        fuse_text_addf(&deep, "[group g%d]\nmatch = ${group g%d.match}\n", i, i + 1);
    fuse_text_add(&deep, "[group g100]\nmatch = *\n");
    assert_said(deep.data, NULL, "x.ini:143: group g64.match: references go more than 64 deep\n");
    fuse_text_free(&deep);
}

static void layers(void **state)
{
    (void)state;
    write_text("base.ini", "[run]\nepochs = 3\n[optimizer]\nplugin = adam\nbetas = 0.8, 0.9\nlr = 0.5\n"
                           "[scheduler]\nplugin = sequential\nstages = a, b\nmilestones = 3\n"
                           "[scheduler.a]\nplugin = chain\nstages = c\n[scheduler.b]\nplugin = linear\n"
                           "[scheduler.c]\nplugin = constant\n[scheduler beta1]\nplugin = constant\n"
                           "[group g]\nmatch = *\namsgrad = yes\n");
#define CHILD "[run]\ninclude = base.ini\n[model]\nplugin = mlp\nsizes = 2, 3\n[data]\nplugin = noise\n"
#define LOST(file, line, key, by, plugin)                                                                              \
    file ":" line ": warning: " key ": dropped: " by " changes the plugin to '" plugin "', which has no such option\n"
    static const struct message_case cases[] = {
        {CHILD, {NULL}, ""},
        {CHILD, {"run.steps=3"}, ""}, /* drops epochs */
        {CHILD "[optimizer]\nplugin = adam\n", {NULL}, ""},
        {CHILD "[optimizer]\nplugin = sgd\n",
         {NULL},
         LOST("base.ini", "5", "optimizer.betas", "x.ini", "sgd") /* */
         "base.ini:18: warning: scheduler beta1: dropped: x.ini changes the optimizer to one that has no such "
         "option\n" LOST("base.ini", "22", "group g.amsgrad", "x.ini", "sgd")},
        /* The same file's key is a mistake. */
        {CHILD "[optimizer]\nplugin = sgd\neps = 3\n[group g]\neps = 3\n[scheduler beta1]\nplugin = constant\n",
         {NULL},
         LOST("base.ini", "5", "optimizer.betas", "x.ini", "sgd")  /* */
         LOST("base.ini", "22", "group g.amsgrad", "x.ini", "sgd") /* */
         "x.ini:10: optimizer.eps: unknown key; [optimizer] takes plugin, mode, accumulate, clip_grad_norm, "
         "clip_grad_value, "
         "clip_grad_norm_per_parameter, clip_algorithm, log_grad_norm, lr, momentum, weight_decay, nesterov\n"
         "x.ini:12: group g.eps: unknown key; [group g] takes match, plugin, lr, momentum, weight_decay, nesterov\n"
         "x.ini:13: scheduler beta1: the optimizer has no 'beta1' that a schedule may drive; it has lr, momentum, "
         "weight_decay\n"},
        {CHILD,
         {"scheduler.plugin=cosine"},
         LOST("base.ini", "9", "scheduler.stages", "the command line", "cosine")      /* */
         LOST("base.ini", "10", "scheduler.milestones", "the command line", "cosine") /* */
         "base.ini:11: warning: scheduler.a: dropped: the command line leaves nothing that refers to it\n"
         "base.ini:14: warning: scheduler.b: dropped: the command line leaves nothing that refers to it\n"
         "base.ini:16: warning: scheduler.c: dropped: the command line leaves nothing that refers to it\n"},
        {CHILD,
         {"scheduler.stages=b", "scheduler.milestones="},
         "base.ini:11: warning: scheduler.a: dropped: the command line leaves nothing that refers to it\n"
         "base.ini:16: warning: scheduler.c: dropped: the command line leaves nothing that refers to it\n"},
        {CHILD,
         {"scheduler.plugin=cosine", "scheduler.b.total_iters=3"},
         LOST("base.ini", "9", "scheduler.stages", "the command line", "cosine")      /* */
         LOST("base.ini", "10", "scheduler.milestones", "the command line", "cosine") /* */
         "base.ini:11: warning: scheduler.a: dropped: the command line leaves nothing that refers to it\n"
         "base.ini:16: warning: scheduler.c: dropped: the command line leaves nothing that refers to it\n"
         "command line: scheduler.b: nothing refers to this section; a `stages` list of a scheduler would\n"},
        /* An unknown plugin drops nothing and judges nothing. */
        {CHILD, {"optimizer.plugin=nope"}, "command line: optimizer.plugin: no plugin 'nope'\n"},
        /* What the plugin in the middle lacks is gone, though the last one knows it. */
        {CHILD "[optimizer]\nplugin = sgd\n",
         {"optimizer.plugin=adam"},
         LOST("base.ini", "5", "optimizer.betas", "x.ini", "sgd")},
    };
    CHECK_CASES(cases);
}

static void includes(void **state)
{
    (void)state;
    assert_int_equal(system("mkdir -p sub/deep"), 0);
    write_text("sub/a.ini", "[run]\ninclude = deep/b.ini\nseed = x\n");
    write_text("sub/deep/b.ini", "[run]\nthreads = y\n");
    static const struct message_case cases[] = {
        {"[run]\ninclude = sub/a.ini\nsteps = 1\n[model]\nplugin = mlp\nsizes = z\n[data]\nplugin = "
         "noise\n[optimizer]\nplugin = adam\n",
         {NULL},
         "sub/deep/b.ini:2: run.threads: 'y' is not an integer in [0, 4096]\n"
         "sub/a.ini:3: run.seed: 'x' is not an integer in [0, inf)\n"
         "x.ini:6: model.sizes: 'z' is not an integer in [1, inf)\n"},
        {"[run]\ninclude = none.ini\n",
         {NULL},
         "x.ini:2: run.include: cannot read 'none.ini': No such file or "
         "directory\n"},
        {"[run]\ninclude = /dev/null\n", {NULL}, "x.ini:2: run.include: cannot read '/dev/null': not a regular file\n"},
        {"[run]\ninclude = sub\n", {NULL}, "x.ini:2: run.include: cannot read 'sub': not a regular file\n"},
        {"[run]\ninclude = ./x.ini\n", {NULL}, "x.ini:2: run.include: './x.ini' includes itself\n"},
        {"[run]\ninclude = ${run.name}.ini\n" GOOD,
         {NULL},
         "x.ini:2: run.include: ${run.name}: only ${env:NAME} works here, since other keys are not known yet\n"
         "x.ini:3: run: the section stands twice, first on line 1\n"},
        {"[run]\ninclude = none.ini\nsteps = 1\n[model]\nplugin = mlp\nsizes = 3\n[data]\nplugin = "
         "noise\n[optimizer]\nplugin = adam\n",
         {"run.include="},
         ""},
        {GOOD,
         {"[run]\nsteps\x1b[2J=5"},
         "command line: [run]?steps?[2J: an override reads section.key=value (optimizer.lr=1e-4)\n"},
        {GOOD, {"run.include=sub/deep/b.ini"}, "sub/deep/b.ini:2: run.threads: 'y' is not an integer in [0, 4096]\n"},
    };
    CHECK_CASES(cases);
    write_text("loop.ini", "[run]\ninclude = x.ini\n");
    assert_said("[run]\ninclude = loop.ini\n", NULL, "loop.ini:2: run.include: 'x.ini' includes itself\n");
    /* A file by a name that no longer leads to it, as of a descriptor of one that was removed. */
    const int descriptor = open("gone.ini", O_RDWR | O_CREAT, 0600);
    char text[64], said[128];
    assert_true(descriptor >= 0 && unlink("gone.ini") == 0);
    assert_true(dprintf(descriptor, "[run]\ninclude = %d\n", descriptor) > 0);
    (void)snprintf(text, sizeof text, "[run]\ninclude = /proc/self/fd/%d\n", descriptor);
    (void)snprintf(said, sizeof said, "/proc/self/fd/%d:2: run.include: '/proc/self/fd/%d' includes itself\n",
                   descriptor, descriptor);
    assert_said(text, NULL, said);
    assert_int_equal(close(descriptor), 0);
}

/* No chain of files makes the reader recurse without end. */
static void includes_are_bounded(void **state)
{
    (void)state;
    char name[32], text[96];
    for (int i = 0; i < 70; i++) {
        (void)snprintf(name, sizeof name, "chain%d.ini", i);
        (void)snprintf(text, sizeof text, "[run]\ninclude = chain%d.ini\n", i + 1);
        write_text(name, i < 69 ? text : GOOD);
    }
    struct outcome outcome = read_good("chain5.ini", NULL);
    end_outcome(&outcome);
    outcome = read_config("chain4.ini", NULL);
    assert_string_equal(outcome.said, "chain68.ini:2: run.include: files include each other more than 64 deep\n");
    end_outcome(&outcome);
}

/* A small file cannot make a large config, nor a large one take long. */
static void growth_is_bounded(void **state)
{
    (void)state;
    struct fuse_text text = {0};
    fuse_text_add(&text, GOOD "[loss]\nkind = mse\n[group g0]\nmatch = aaaaaaaaaaaaaaaa\n");
    for (int i = 1; i < 30; i++)
        fuse_text_addf(&text, "[group g%d]\nmatch = ${group g%d.match}, ${group g%d.match}\n", i, i - 1, i - 1);
    write_text("x.ini", text.data);
    struct outcome outcome = read_config("x.ini", NULL);
    assert_non_null(strstr(outcome.said, "match}: the config's references together make more than 1 MiB of text\n"));
    end_outcome(&outcome);
    fuse_text_clear(&text);
    for (int i = 0; i < 20001; i++)
        fuse_text_add(&text, "\n");
    assert_said(text.data, NULL, "x.ini:20001: a config has at most 20000 lines\n");
    fuse_text_clear(&text);
    while (text.length < (1 << 20))
        fuse_text_add(&text, ";0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n");
    assert_said(text.data, NULL, "x.ini: cannot be read: File too large\n");
    fuse_text_free(&text);
}

/* Names and lines that inih alone would cut. */
static void any_length(void **state)
{
    (void)state;
    enum { LENGTH = 100000 };
    char *big = malloc(LENGTH + 1);
    assert_non_null(big);
    memset(big, 'k', LENGTH);
    big[LENGTH] = '\0';
    struct fuse_text text = {0}, said = {0};
    fuse_text_addf(&text, GOOD "%s = 1\n[loss]\nkind = %s\n[%s]\nlr = 1\n", big, big, big);
    fuse_text_addf(&said, "x.ini:10: optimizer.%s: unknown key; " TAKES_ADAM "\n", big);
    fuse_text_addf(&said, "x.ini:12: loss.kind: '%.60s...' is not one of cross_entropy, mse, sum\n", big);
    fuse_text_addf(&said, "x.ini:13: %s: unknown section; " ROLES "\n", big);
    assert_said(text.data, NULL, said.data);
    fuse_text_clear(&text);
    fuse_text_addf(&text, GOOD "[group %s]\nmatch = %s,\n  %s\n[group %sx]\nmatch = a\n", big, big, big, big);
    write_text("long.ini", text.data);
    const char *overrides[] = {NULL, NULL};
    char *override = fuse_format("run.name=%s", big);
    overrides[0] = override;
    struct outcome outcome = read_good("long.ini", overrides);
    assert_string_equal(fuse_option_text(fuse_config_options(outcome.config, "run"), "name"), big);
    assert_int_equal(fuse_config_group_count(outcome.config), 2);
    const struct fuse_config_group *group = fuse_config_group(outcome.config, 0);
    assert_string_equal(group->name, big);
    assert_int_equal(group->match_count, 2);
    assert_string_equal(group->match[1], big);
    end_outcome(&outcome);
    free(override);
    fuse_text_free(&text);
    fuse_text_free(&said);
    free(big);
}

static void reports_point_at_lines(void **state)
{
    (void)state;
    write_text("x.ini", GOOD "[group g]\nmatch = *\n");
    const char *const overrides[] = {"model.weights=w.safetensors"};
    struct fuse_diagnostics *diagnostics = fuse_diagnostics_new();
    struct fuse_config *config = NULL;
    assert_int_equal(fuse_config_read("x.ini", overrides, 1, diagnostics, &config), FUSERUN_OK);
    assert_int_equal(fuse_config_resolve(config, &fake_resolver, diagnostics), FUSERUN_OK);
    fuse_config_report(config, diagnostics, "group g", "match", "takes %d parameters", 0);
    fuse_config_report(config, diagnostics, "model", "weights", "absent");
    fuse_config_report(config, diagnostics, "model", "freeze", "matches nothing");
    fuse_config_report(config, diagnostics, "scheduler", "t_max", "odd");
    fuse_config_warn(config, diagnostics, "model", "sizes", "small");
    char *said = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&said, &size);
    fuse_diagnostics_print(diagnostics, stream);
    fuse_diagnostics_print(diagnostics, stream); /* nothing is told twice */
    assert_int_equal(fclose(stream), 0);
    assert_string_equal(said, "x.ini:1: scheduler.t_max: odd\n"
                              "x.ini:3: model.freeze: matches nothing\n"
                              "x.ini:5: warning: model.sizes: small\n"
                              "x.ini:11: group g.match: takes 0 parameters\n"
                              "command line: model.weights: absent\n");
    assert_int_equal(fuse_diagnostics_error_count(diagnostics), 4);
    free(said);
    fuse_config_free(&config);
    fuse_diagnostics_free(&diagnostics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_39_misspelt_keys_and_sections),
        cmocka_unit_test(five_mistakes_give_five_errors),
        cmocka_unit_test(missing_things),
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(wrong_lines),
        cmocka_unit_test(schedules),
        cmocka_unit_test(values_that_contradict),
        cmocka_unit_test(expansion),
        cmocka_unit_test(layers),
        cmocka_unit_test(includes),
        cmocka_unit_test(includes_are_bounded),
        cmocka_unit_test(growth_is_bounded),
        cmocka_unit_test(any_length),
        cmocka_unit_test(reports_point_at_lines),
    };
    return cmocka_run_group_tests_name("config", tests, enter_temporary_folder, leave_temporary_folder);
}
