#include "train/loop.h"

#include <signal.h>

static volatile sig_atomic_t was_asked, save_was_asked;

static void ask(int number)
{
    (void)number;
    was_asked = 1;
    /* Whoever asks twice does not want to wait for the update to end. */
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGHUP, SIG_DFL);
}

static void ask_save(int number)
{
    (void)number;
    save_was_asked = 1;
}

void fuse_signals_prepare(void)
{
    struct sigaction action = {.sa_handler = ask_save, .sa_flags = SA_RESTART};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGUSR1, &action, NULL);
    /* The reader of the progress lines may go away; the run is not about them. */
    (void)signal(SIGPIPE, SIG_IGN);
    /* A file beyond `ulimit -f` is an error of write() like others, with a message. */
    (void)signal(SIGXFSZ, SIG_IGN);
}

void fuse_signals_catch(void)
{
    struct sigaction before, action = {.sa_handler = ask, .sa_flags = SA_RESTART};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    /* The terminal went away; under nohup that is nobody's business. */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        (void)sigaction(SIGHUP, &action, NULL);
}

bool fuse_signals_asked(void)
{
    return was_asked != 0;
}

bool fuse_signals_save_asked(void)
{
    const bool was_set = save_was_asked != 0;
    save_was_asked = 0;
    return was_set;
}
