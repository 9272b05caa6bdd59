#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: fuserun CONFIG.ini [section.key=value ...]            train what the config describes\n"
    "       fuserun check CONFIG.ini [section.key=value ...]      validate everything, print the plan, write nothing\n"
    "       fuserun schedule CONFIG.ini [section.key=value ...] [--csv]\n"
    "                                                             the values every group gets, without training\n"
    "       fuserun plugins [NAME] [--config CONFIG.ini]          every plugin found, or one and its options\n"
    "       fuserun inspect FILE                                  names, types and shapes in a .safetensors or .pth\n"
    "       fuserun export RUN_OR_FILE --to X.pth                 weights for PyTorch (--weights-key NAME: a dict "
    "inside)\n"
    "       fuserun report RUN_DIR [--svg [X.svg]]                make a run's memory.html again, or a picture of it\n"
    "       fuserun compare RUN_DIR... [--html X.html] [--svg [X.svg]]\n"
    "                                                             runs side by side: a table, a page, a picture\n"
    "       fuserun --help | --version\n"
    "\n"
    "Every command but the first takes --json. Exit status: 0 done, 1 failed on the way, 2 a mistake in the config or\n"
    "on the command line, 130 stopped by Ctrl-C.\n";

struct command {
    const char *name;
    int (*execute)(const struct fuse_arguments *arguments); /* NULL: not in this version */
    bool takes_csv;
    bool takes_config;
    bool takes_to;
    bool takes_svg;
    bool takes_html;
};
static const struct command commands[] = {
    {.name = "check", .execute = fuse_command_check},
    {.name = "schedule", .execute = fuse_command_schedule, .takes_csv = true},
    {.name = "plugins", .execute = fuse_command_plugins, .takes_config = true},
    {.name = "inspect", .execute = fuse_command_inspect},
    {.name = "compare", .execute = fuse_command_compare, .takes_svg = true, .takes_html = true},
    {.name = "report", .execute = fuse_command_report, .takes_svg = true},
    {.name = "export", .execute = fuse_command_export, .takes_to = true},
    {.name = "eval"},
    {.name = "predict"},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

int fuse_usage_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("fuserun: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    return FUSE_EXIT_USAGE;
}

int fuse_report_refusal(const struct fuse_error *error)
{
    fprintf(stderr, "fuserun: %s\n", error->text);
    return error->code == FUSERUN_ERROR_MEMORY ? FUSE_EXIT_FAILED : FUSE_EXIT_USAGE;
}

int fuse_report_no_memory(void)
{
    fputs("fuserun: out of memory\n", stderr);
    return FUSE_EXIT_FAILED;
}

int fuse_report_failure(const struct fuse_error *error)
{
    fprintf(stderr, "fuserun: %s\n", error->text);
    if (error->code == FUSERUN_ERROR_INTERRUPTED)
        return FUSE_EXIT_INTERRUPTED;
    return FUSE_EXIT_FAILED;
}

int fuse_print_text(const struct fuse_text *text)
{
    if (text->failed)
        return fuse_report_no_memory();
    const size_t written = fwrite(text->data, 1, text->length, stdout);
    if (written == text->length && fflush(stdout) == 0)
        return FUSE_EXIT_DONE;
    fprintf(stderr, "fuserun: cannot write to standard output: %s\n", strerror(errno));
    return FUSE_EXIT_FAILED;
}

int fuse_open_experiment(const struct fuse_arguments *arguments, struct fuse_experiment **experiment)
{
    *experiment = NULL;
    if (arguments->count == 0)
        return fuse_usage_error("%s needs a CONFIG.ini; fuserun --help shows how", arguments->command);
    for (size_t i = 1; i < arguments->count; i++) {
        if (strchr(arguments->words[i], '=') == NULL)
            return fuse_usage_error("'%s' is not an override; write section.key=value", arguments->words[i]);
    }
    struct fuse_error error = FUSE_ERROR_INIT;
    const int status =
        fuse_experiment_open(arguments->words[0], arguments->words + 1, arguments->count - 1, experiment, &error);
    size_t mistakes = 0;
    if (error.code == FUSERUN_ERROR_MEMORY)
        return fuse_report_failure(&error); /* what was found so far may only follow from that */
    if (*experiment != NULL && (*experiment)->diagnostics != NULL) {
        mistakes = fuse_diagnostics_error_count((*experiment)->diagnostics);
        fuse_diagnostics_print((*experiment)->diagnostics, stderr);
    }
    if (status == FUSERUN_OK)
        return FUSE_EXIT_DONE;
    if (mistakes > 0)
        return FUSE_EXIT_USAGE;
    const int exit_status = fuse_report_failure(&error);
    return error.code == FUSERUN_ERROR_INTERNAL ? exit_status : FUSE_EXIT_USAGE;
}

/* What CUDA needs of this machine, told by its backend; a build without one has nothing to tell. */
static int add_cuda(struct fuse_text *text)
{
    char libraries[512] = "";
    const struct fuse_component *component = NULL;
    const char *file = NULL;
    struct fuse_registry *registry = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    int status = fuse_registry_new(NULL, 0, NULL, &registry, &error);
    if (status == FUSERUN_OK)
        status = fuse_registry_find(registry, FUSERUN_KIND_BACKEND, "cuda", &component, &file, &error);
    const struct fuse_backend *backend = status == FUSERUN_OK ? component->api : NULL;
    if (backend != NULL && backend->describe_libraries != NULL) {
        backend->describe_libraries(libraries, sizeof libraries);
        fuse_text_addf(text, "CUDA: %s\n", libraries);
    } else if (status != FUSERUN_OK && strstr(FUSERUN_FEATURES, "+CUDA") != NULL) {
        fuse_text_addf(text, "CUDA: %s\n", error.text);
    }
    fuse_registry_free(&registry);
    return status == FUSERUN_ERROR_MEMORY ? fuse_report_failure(&error) : FUSE_EXIT_DONE;
}

static int show_version(void)
{
    struct fuse_text text = {0};
    fuse_text_addf(&text, "fuserun %s\n%s\n", FUSERUN_VERSION, FUSERUN_FEATURES);
    int status = add_cuda(&text);
    if (status == FUSE_EXIT_DONE)
        status = fuse_print_text(&text);
    fuse_text_free(&text);
    return status;
}

static int show_help(void)
{
    fputs(usage, stdout);
    return fflush(stdout) == 0 ? FUSE_EXIT_DONE : FUSE_EXIT_FAILED;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

/* `--name` or `--name=VALUE`. */
static bool is_option(const char *value, const char *name)
{
    const size_t length = strlen(name);
    return strncmp(value, name, length) == 0 && (value[length] == '\0' || value[length] == '=');
}

/* Its value: behind the `=`, or the next word. */
static int read_option(int count, char **values, int *at, const char *name, const char *what, const char **option)
{
    const char *value = values[*at];
    if (value[strlen(name)] == '=')
        *option = value + strlen(name) + 1;
    else if (*at + 1 < count)
        *option = values[++*at];
    else
        return fuse_usage_error("%s needs a %s behind it", name, what);
    return FUSE_EXIT_DONE;
}

/* `--svg`, `--svg=PATH`, or `--svg X.svg`: a word that ends otherwise is not its value. */
static void read_svg(int count, char **values, int *at, struct fuse_arguments *arguments)
{
    const char *value = values[*at];
    const char *next = *at + 1 < count ? values[*at + 1] : "";
    const size_t length = strlen(next);
    arguments->wants_svg = true;
    if (value[strlen("--svg")] == '=')
        arguments->svg = value + strlen("--svg=");
    else if (length > 4 && strcmp(next + length - 4, ".svg") == 0)
        arguments->svg = values[++*at];
}

/* `fuserun check --help`. Every command is in the one page. */
static bool asks_for_help(int count, char **values)
{
    for (int i = 0; i < count && strcmp(values[i], "--") != 0; i++)
        if (strcmp(values[i], "--help") == 0 || strcmp(values[i], "-h") == 0)
            return true;
    return false;
}

/* Flags may stand anywhere; everything else is a word. command NULL: run. */
static int read_arguments(int count, char **values, const struct command *command, struct fuse_arguments *arguments)
{
    bool only_words = false;
    for (int i = 0; i < count; i++) {
        const char *value = values[i];
        if (only_words || value[0] != '-' || value[1] == '\0')
            arguments->words[arguments->count++] = value;
        else if (strcmp(value, "--") == 0)
            only_words = true;
        else if (strcmp(value, "--json") == 0 && command != NULL)
            arguments->wants_json = true;
        else if (strcmp(value, "--csv") == 0 && command != NULL && command->takes_csv)
            arguments->wants_csv = true;
        else if (command != NULL && command->takes_config && is_option(value, "--config"))
            FUSE_TRY(read_option(count, values, &i, "--config", "CONFIG.ini", &arguments->config));
        else if (command != NULL && command->takes_to && is_option(value, "--to"))
            FUSE_TRY(read_option(count, values, &i, "--to", "X.pth", &arguments->to));
        else if (command != NULL && command->takes_to && is_option(value, "--weights-key"))
            FUSE_TRY(read_option(count, values, &i, "--weights-key", "NAME", &arguments->weights_key));
        else if (command != NULL && command->takes_html && is_option(value, "--html"))
            FUSE_TRY(read_option(count, values, &i, "--html", "X.html", &arguments->html));
        else if (command != NULL && command->takes_svg && is_option(value, "--svg"))
            read_svg(count, values, &i, arguments);
        else
            return fuse_usage_error("%s does not know the option '%s'; fuserun --help shows all",
                                    command != NULL ? command->name : "a run", value);
    }
    if (arguments->wants_json && arguments->wants_csv)
        return fuse_usage_error("--json and --csv do not go together");
    return FUSE_EXIT_DONE;
}

/* `fuserun chekc a.ini`: neither a command nor a file. */
static int check_config_exists(const char *word)
{
    if (access(word, F_OK) == 0 || strchr(word, '/') != NULL || strchr(word, '.') != NULL)
        return FUSE_EXIT_DONE;
    const char *names[COMMAND_COUNT];
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = commands[i].name;
    const char *near = fuse_nearest(word, names, COMMAND_COUNT);
    if (near != NULL)
        return fuse_usage_error("'%s' is neither a command nor a file (did you mean '%s'?)", word, near);
    return fuse_usage_error("'%s' is neither a command nor a file; fuserun --help shows the commands", word);
}

/* Threads that wait for work spin for some ten microseconds and then sleep, unless the user wants otherwise. Waking one
 * up takes as long as many an operation (measured on two cores of a virtual machine, a step of a ViT that is 256 wide:
 * 65 ms where they sleep at once, 40 so); but where others want the cores too, spinning costs whole time slices at
 * every operation (configs/digits.ini on two threads beside one busy one: 0.13 s asleep, 0.3 so, 6 with the OpenMP
 * runtime's own 300000 turns). The OpenMP runtime comes into the process with the backend plugin and reads this then;
 * GCC's knows the first variable, which goes before the second, and LLVM's the second. */
#define SPIN_TURNS "3000"

static void choose_waiting(void)
{
    if (getenv("OMP_WAIT_POLICY") != NULL || getenv("KMP_BLOCKTIME") != NULL)
        return;
    (void)setenv("GOMP_SPINCOUNT", SPIN_TURNS, 0);
    (void)setenv("OMP_WAIT_POLICY", "passive", 0);
}

/* A caller may have closed the standard streams. The first file opened would then get such a number, and what is meant
 * for the terminal would go into it. Each place is taken the wrong way round, so that using it stays an error. */
static void hold_standard_streams(void)
{
    for (int descriptor = 0; descriptor <= 2; descriptor++)
        if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY); /* gets the lowest free number: this one */
}

int main(int count, char **values)
{
    hold_standard_streams();
    choose_waiting();
    if (count < 2) {
        fputs(usage, stderr);
        return FUSE_EXIT_USAGE;
    }
    if (strcmp(values[1], "help") == 0 || asks_for_help(count - 1, values + 1))
        return show_help();
    if (strcmp(values[1], "--version") == 0)
        return show_version();
    const struct command *command = find_command(values[1]);
    if (command != NULL && command->execute == NULL)
        return fuse_usage_error("the command '%s' is not in this version", command->name);
    const int first = command != NULL ? 2 : 1;
    struct fuse_arguments arguments = {.command = command != NULL ? command->name : "a run"};
    arguments.words = calloc((size_t)count + 1, sizeof *arguments.words);
    if (arguments.words == NULL)
        return fuse_report_no_memory();
    int status = read_arguments(count - first, values + first, command, &arguments);
    if (status == FUSE_EXIT_DONE && command == NULL && arguments.count > 0)
        status = check_config_exists(arguments.words[0]);
    if (status == FUSE_EXIT_DONE)
        status = command != NULL ? command->execute(&arguments) : fuse_command_run(&arguments);
    free(arguments.words);
    return status;
}
