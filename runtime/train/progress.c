#include "train/progress.h"

#include "config/options.h"
#include "train/metrics.h"
#include "train/resume.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PLAIN_NS 3000000000 /* between two plain lines */
#define BAR_NS 100000000    /* between two redraws */
#define WIDE_CELLS 24
#define NARROW_CELLS 8

const char *fuse_bytes_show(uint64_t bytes, char buffer[FUSE_BYTES_CHARS])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    if (bytes < 1024) {
        (void)snprintf(buffer, FUSE_BYTES_CHARS, "%" PRIu64 " B", bytes);
        return buffer;
    }
    double value = (double)bytes / 1024;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(buffer, FUSE_BYTES_CHARS, "%.1f %s", value, units[unit]);
    return buffer;
}

static bool has_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0')
            return strstr(value, "UTF-8") != NULL || strstr(value, "utf8") != NULL;
    }
    return false;
}

static enum fuse_progress_kind choose_kind(const char *progress)
{
    if (progress != NULL && strcmp(progress, "off") == 0)
        return FUSE_PROGRESS_OFF;
    if (progress != NULL && strcmp(progress, "bar") == 0)
        return FUSE_PROGRESS_BAR;
    const char *terminal = getenv("TERM");
    const bool is_auto = progress == NULL || strcmp(progress, "auto") == 0;
    return is_auto && isatty(STDOUT_FILENO) && terminal != NULL && strcmp(terminal, "dumb") != 0 ? FUSE_PROGRESS_BAR
                                                                                                 : FUSE_PROGRESS_PLAIN;
}

void fuse_progress_start(struct fuse_progress *progress, const struct fuse_experiment *experiment)
{
    const struct fuse_options *run = fuse_config_options(experiment->config, "run");
    *progress = (struct fuse_progress){.kind = choose_kind(fuse_option_text(run, "progress")),
                                       .name = fuse_option_text(run, "name"),
                                       .total_updates = experiment->total_updates,
                                       .is_utf8 = has_utf8()};
    progress->started_ns = progress->shown_ns = progress->counted_ns = fuse_now_ns();
    if (progress->kind == FUSE_PROGRESS_OFF)
        return;
    char peak[FUSE_BYTES_CHARS];
    struct fuse_backend_info info = {.struct_size = FUSERUN_STRUCT_SIZE(fuse_backend_info, own_bytes)};
    experiment->backend->describe(experiment->device, &info);
    printf("%s  %" PRId64 " parameters  %s  %" PRId64 " updates, %" PRId64 " an epoch  peak %s  on %s\n",
           progress->name, fuse_experiment_parameter_values(experiment),
           fuse_option_text(fuse_config_options(experiment->config, "optimizer"), "mode"), experiment->total_updates,
           experiment->updates_per_epoch, fuse_bytes_show(experiment->predicted.bytes, peak),
           info.description != NULL ? info.description : info.name);
    if (experiment->resume != NULL)
        printf("resumed from step %" PRId64 ", %s\n", experiment->resume->record.step, experiment->resume->path);
    (void)fflush(stdout);
}

void fuse_progress_clear(struct fuse_progress *progress)
{
    if (!progress->has_line)
        return;
    fputs("\r\033[K", stdout);
    (void)fflush(stdout);
    progress->has_line = false;
}

static void show_time(int64_t seconds, char *text, size_t size)
{
    if (seconds >= 3600)
        (void)snprintf(text, size, "%" PRId64 ":%02d:%02d", seconds / 3600, (int)(seconds / 60 % 60),
                       (int)(seconds % 60));
    else
        (void)snprintf(text, size, "%d:%02d", (int)(seconds / 60), (int)(seconds % 60));
}

/* A rate with three digits: 98.1k. */
static void show_rate(double rate, char *text, size_t size)
{
    if (rate >= 1e6)
        (void)snprintf(text, size, "%.1fM", rate / 1e6);
    else if (rate >= 1e4)
        (void)snprintf(text, size, "%.1fk", rate / 1e3);
    else
        (void)snprintf(text, size, "%.*f", rate < 10 ? 2 : 0, rate);
}

/* The bar, then as many of the pieces as fit, the important ones first. The bar's width depends on the terminal's
 * alone, so that nothing jumps while numbers change. */
static void show_bar(struct fuse_progress *progress, const struct fuse_progress_state *state, const char *left,
                     const char *rate)
{
    struct winsize window = {0};
    const int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
    const bool is_wide = width >= 100;
    const int cells = is_wide ? WIDE_CELLS : width >= 50 ? NARROW_CELLS : 0;
    char peak[FUSE_BYTES_CHARS];
    char pieces[6][64];
    const double done = progress->total_updates > 0 ? (double)state->step / (double)progress->total_updates : 1;
    (void)snprintf(pieces[0], sizeof pieces[0], "%" PRId64 "/%" PRId64, state->step, progress->total_updates);
    (void)snprintf(pieces[1], sizeof pieces[1], "  loss %.4g", state->loss);
    (void)snprintf(pieces[2], sizeof pieces[2], "  lr %.2e", state->lr);
    (void)snprintf(pieces[3], sizeof pieces[3], "  %s left", left);
    (void)snprintf(pieces[4], sizeof pieces[4], "  %s%s", rate, is_wide ? " samples/s" : "/s");
    (void)snprintf(pieces[5], sizeof pieces[5], "  %s", fuse_bytes_show(state->peak_bytes, peak));
    int used = cells > 0 ? cells + 3 : 0;
    int shown = 0;
    while (shown < 6 && used + (int)strlen(pieces[shown]) < width)
        used += (int)strlen(pieces[shown++]);
    fputs(cells > 0 ? "\r[" : "\r", stdout);
    const int full = (int)(done * cells);
    for (int i = 0; i < cells; i++)
        fputs(i < full    ? (progress->is_utf8 ? "\u2501" : "=")
              : i == full ? (progress->is_utf8 ? "\u2578" : ">")
                          : " ",
              stdout);
    fputs(cells > 0 ? "] " : "", stdout);
    for (int i = 0; i < shown; i++)
        fputs(pieces[i], stdout);
    fputs("\033[K", stdout);
    (void)fflush(stdout);
    progress->has_line = true;
}

void fuse_progress_update(struct fuse_progress *progress, const struct fuse_progress_state *state, int64_t now_ns)
{
    if (progress->kind == FUSE_PROGRESS_OFF)
        return;
    progress->samples += state->samples;
    progress->steps_done++;
    if (now_ns - progress->shown_ns < (progress->kind == FUSE_PROGRESS_BAR ? BAR_NS : PLAIN_NS))
        return;
    progress->shown_ns = now_ns;
    if (now_ns - progress->counted_ns >= 500000000 || progress->samples_per_s == 0) {
        progress->samples_per_s = (double)progress->samples * 1e9 / (double)(now_ns - progress->counted_ns);
        progress->samples = 0;
        progress->counted_ns = now_ns;
    }
    char left[32];
    char rate[32];
    const double each_s = (double)(now_ns - progress->started_ns) / 1e9 / (double)progress->steps_done;
    show_time((int64_t)(each_s * (double)(progress->total_updates - state->step) + 0.5), left, sizeof left);
    show_rate(progress->samples_per_s, rate, sizeof rate);
    if (progress->kind == FUSE_PROGRESS_BAR) {
        show_bar(progress, state, left, rate);
        return;
    }
    char peak[FUSE_BYTES_CHARS];
    printf("train  step %" PRId64 "/%" PRId64 "  epoch %.2f  loss %.4g  lr %.4g  %s samples/s  peak %s  %s left\n",
           state->step, progress->total_updates, state->epoch, state->loss, state->lr, rate,
           fuse_bytes_show(state->peak_bytes, peak), left);
    (void)fflush(stdout);
}

void fuse_progress_evaluation(struct fuse_progress *progress, int64_t step, double loss, const double *accuracy)
{
    if (progress->kind == FUSE_PROGRESS_OFF)
        return;
    fuse_progress_clear(progress);
    printf("eval  step %" PRId64 "  loss %.4f", step, loss);
    if (accuracy != NULL)
        printf("  accuracy %.4f", *accuracy);
    printf("\n");
    (void)fflush(stdout);
}

void fuse_progress_checkpoint(struct fuse_progress *progress, int64_t step)
{
    if (progress->kind == FUSE_PROGRESS_OFF)
        return;
    fuse_progress_clear(progress);
    printf("save  step %" PRId64 "  a checkpoint, as SIGUSR1 asked\n", step);
    (void)fflush(stdout);
}

void fuse_progress_finish(struct fuse_progress *progress, const struct fuse_progress_summary *summary)
{
    if (progress->kind == FUSE_PROGRESS_OFF)
        return;
    fuse_progress_clear(progress);
    char peak[FUSE_BYTES_CHARS];
    printf("done  updates %" PRId64 "  training %.2f s", summary->updates, summary->training_s);
    if (summary->training_s > 0)
        printf("  %.0f samples/s", (double)summary->samples / summary->training_s);
    if (summary->loss != NULL)
        printf("  loss %.4f", *summary->loss);
    else
        printf("  (all of them before: nothing was left to do)");
    if (summary->evaluation_loss != NULL)
        printf("  eval loss %.4f", *summary->evaluation_loss);
    if (summary->accuracy != NULL)
        printf("  eval accuracy %.4f", *summary->accuracy);
    if (summary->saves > 0)
        printf("\ncheckpoints %" PRId64 " while training, which stood still for them for %.3f s", summary->saves,
               summary->saving_s);
    printf("\npeak memory %s (%" PRIu64 " bytes, %s)\nresults in %s\n", fuse_bytes_show(summary->peak.bytes, peak),
           summary->peak.bytes, fuse_phase_name(summary->peak.phase), summary->folder);
    (void)fflush(stdout);
}
