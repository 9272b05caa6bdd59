#include "cli/cli.h"
#include "train/fit.h"
#include "train/loop.h"

#include <inttypes.h>
#include <stdio.h>

int fuse_command_run(const struct fuse_arguments *arguments)
{
    struct fuse_experiment *experiment = NULL;
    struct fuse_outputs outputs = {0};
    struct fuse_error error = FUSE_ERROR_INIT;
    fuse_signals_prepare();
    int exit_status = fuse_open_experiment(arguments, &experiment);
    if (exit_status != FUSE_EXIT_DONE)
        goto out;
    int status = fuse_outputs_check(experiment, arguments->words[0], false, &outputs, &error);
    if (status == FUSERUN_OK || status == FUSERUN_ERROR_CONFIG) {
        const int fit = fuse_fit_check(experiment, false, &error); /* what does not fit is told beside a taken folder */
        status = fit != FUSERUN_OK ? fit : status;
    }
    fuse_diagnostics_print(experiment->diagnostics, stderr);
    if (status == FUSERUN_ERROR_CONFIG) {
        exit_status = FUSE_EXIT_USAGE;
        goto out;
    }
    if (status == FUSERUN_OK && fuse_outputs_are_done(experiment, &outputs)) {
        printf("all %" PRId64 " updates are done already, results in %s (run.resume=never starts afresh)\n",
               experiment->total_updates, outputs.folder);
        (void)fflush(stdout);
        goto out;
    }
    fuse_signals_catch(); /* up to here there is nothing to save, and nothing to wait for */
    if (status == FUSERUN_OK)
        status = fuse_experiment_allocate(experiment, &error);
    if (status == FUSERUN_OK)
        status = fuse_outputs_start(experiment, arguments->words[0], &outputs, &error);
    if (status == FUSERUN_OK)
        status = fuse_run(experiment, &outputs, &error);
    if (status != FUSERUN_OK && fuse_diagnostics_error_count(experiment->diagnostics) > 0) {
        fuse_diagnostics_print(experiment->diagnostics, stderr); /* it has a line of the config */
        exit_status = FUSE_EXIT_FAILED;
    } else if (status != FUSERUN_OK)
        exit_status = fuse_report_failure(&error);
out:
    fuse_outputs_free(&outputs);
    fuse_experiment_free(&experiment);
    return exit_status;
}
