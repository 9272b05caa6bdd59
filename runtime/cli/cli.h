/* cli/ - the command line: main and one file a command. Everything below it returns errors; only here they become
 * messages and exit statuses. */
#ifndef FUSE_CLI_CLI_H
#define FUSE_CLI_CLI_H

#include "base/text.h"
#include "train/experiment.h"

#define FUSE_EXIT_DONE 0
#define FUSE_EXIT_FAILED 1 /* something went wrong on the way */
#define FUSE_EXIT_USAGE 2  /* the config or the command line is wrong; nothing was written */
#define FUSE_EXIT_INTERRUPTED 130

/* What stands behind the command's name. */
struct fuse_arguments {
    const char *command;
    bool wants_json;
    bool wants_csv;
    const char *config;      /* --config */
    const char *to;          /* --to */
    const char *weights_key; /* --weights-key */
    const char *html;        /* --html */
    bool wants_svg;
    const char *svg;    /* --svg; NULL: to stdout */
    const char **words; /* positional: for most the config, then overrides */
    size_t count;
};

int fuse_command_run(const struct fuse_arguments *arguments);
int fuse_command_check(const struct fuse_arguments *arguments);
int fuse_command_schedule(const struct fuse_arguments *arguments);
int fuse_command_plugins(const struct fuse_arguments *arguments);
int fuse_command_inspect(const struct fuse_arguments *arguments);
int fuse_command_export(const struct fuse_arguments *arguments);
int fuse_command_report(const struct fuse_arguments *arguments);
int fuse_command_compare(const struct fuse_arguments *arguments);

/* One line on stderr, "fuserun: ..."; returns FUSE_EXIT_USAGE. */
int fuse_usage_error(const char *format, ...) FUSERUN_PRINTF(1, 2);

/* Opens the experiment of words[0] with the rest as overrides, and prints its diagnostics.
 * FUSE_EXIT_DONE, or the status to exit with; *experiment must be freed in
 * either case. */
int fuse_open_experiment(const struct fuse_arguments *arguments, struct fuse_experiment **experiment);

/* Prints an error that no config line is to blame for and returns its exit status. */
int fuse_report_failure(const struct fuse_error *error);

/* The same for a file that was refused before anything was done. */
int fuse_report_refusal(const struct fuse_error *error);

/* And for a lack of memory that nothing more is known of. */
int fuse_report_no_memory(void);

/* Prints what a command made; an output that does not take it is a failure. */
int fuse_print_text(const struct fuse_text *text);

#endif
