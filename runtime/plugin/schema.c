#include "plugin/schema.h"

#include "base/error.h"
#include "base/number.h"
#include "config/options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define BROKEN(...) fuse_fail(error, FUSERUN_ERROR_PLUGIN, NULL, __VA_ARGS__)
#define KEY_CHARS 48

const char *fuse_schema_what(char *buffer, size_t size, const char *kind, const char *name)
{
    (void)snprintf(buffer, size, "%s '%s'", kind, name);
    return buffer;
}

/* ---- options ------------------------------------------------------------------------------------------------- */

static bool is_lower_name(const char *text, size_t length)
{
    if (length == 0 || length >= KEY_CHARS || !(text[0] >= 'a' && text[0] <= 'z'))
        return false;
    for (size_t i = 1; i < length; i++) {
        const char c = text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'))
            return false;
    }
    return true;
}

/* The names of "a|b|c": how many, or 0 if one is empty or comes twice. */
static uint32_t count_names(const char *names)
{
    uint32_t count = 0;
    for (const char *at = names;; at++) {
        const size_t length = strcspn(at, "|");
        if (length == 0)
            return 0;
        for (const char *before = names; before < at; before += strcspn(before, "|") + 1) {
            if (strcspn(before, "|") == length && strncmp(before, at, length) == 0)
                return 0;
        }
        count++;
        at += length;
        if (*at == '\0')
            return count;
    }
}

/* "[0, 1)": two numbers in order, `inf` with a sign among them. */
static bool is_range(const char *range)
{
    char low_text[FUSE_NUMBER_CHARS], high_text[FUSE_NUMBER_CHARS];
    double low, high;
    const size_t length = strlen(range);
    const char *comma = strchr(range, ',');
    if (length < 5 || comma == NULL || (range[0] != '[' && range[0] != '(') ||
        (range[length - 1] != ']' && range[length - 1] != ')'))
        return false;
    const char *second = comma + 1 + strspn(comma + 1, " ");
    const size_t low_chars = (size_t)(comma - range) - 1;
    if (second >= range + length - 1)
        return false;
    const size_t high_chars = (size_t)(range + length - 1 - second);
    if (low_chars >= sizeof low_text || high_chars >= sizeof high_text)
        return false;
    memcpy(low_text, range + 1, low_chars);
    low_text[low_chars] = '\0';
    memcpy(high_text, second, high_chars);
    high_text[high_chars] = '\0';
    return fuse_number_parse(low_text, &low) && fuse_number_parse(high_text, &high) && low <= high;
}

/* A default must be what a user could have written: the config's own reader judges it. */
static int check_default(const struct fuse_component *component, const struct fuse_option *option, const char *what,
                         struct fuse_error *error)
{
    struct fuse_option alone = *option;
    struct fuse_component lone = *component;
    struct fuse_options *values = NULL;
    struct fuse_error reason = FUSE_ERROR_INIT;
    char pair[512];
    if (option->default_text == NULL)
        return FUSERUN_OK;
    if (snprintf(pair, sizeof pair, "%s=%s", option->key, option->default_text) >= (int)sizeof pair)
        return BROKEN("%s: option '%s': its default is too long", what, option->key);
    alone.default_text = NULL;
    lone.options = &alone;
    lone.option_count = 1;
    lone.option_stride = sizeof alone;
    const char *const pairs[] = {pair};
    const int status = fuse_options_from_pairs(&lone, pairs, 1, &values, &reason);
    fuse_options_free(&values);
    if (status == FUSERUN_ERROR_MEMORY)
        return fuse_fail(error, status, NULL, "%s", reason.text);
    if (status != FUSERUN_OK)
        return BROKEN("%s: option '%s': its default '%s' is refused: %s", what, option->key, option->default_text,
                      reason.text);
    return FUSERUN_OK;
}

static int check_option(const struct fuse_component *component, const struct fuse_option *option, const char *what,
                        struct fuse_error *error)
{
    const uint32_t type = option->type;
    const bool is_list = (option->flags & FUSERUN_OPTION_LIST) != 0;
    if (option->key == NULL || !is_lower_name(option->key, strlen(option->key)))
        return BROKEN("%s: an option's key is '%s', it must be lower-case letters, digits and '_', at most %d", what,
                      option->key != NULL ? option->key : "", KEY_CHARS - 1);
    if (strcmp(option->key, "plugin") == 0)
        return BROKEN("%s: option 'plugin' is fuserun's own", what);
    if (type < 1 || type > FUSERUN_OPTION_TYPE_COUNT)
        return BROKEN("%s: option '%s' has type %u, this fuserun knows 1 to %d", what, option->key, type,
                      FUSERUN_OPTION_TYPE_COUNT);
    if (type == FUSERUN_OPTION_STAGE && component->kind != FUSERUN_KIND_SCHEDULER)
        return BROKEN("%s: option '%s' is a stage, which only schedulers have", what, option->key);
    if (type == FUSERUN_OPTION_CHOICE && (option->choices == NULL || count_names(option->choices) == 0))
        return BROKEN("%s: option '%s' needs choices of the form \"a|b\", each named once", what, option->key);
    if (option->range != NULL && !is_range(option->range))
        return BROKEN("%s: option '%s': its range '%s' is no interval such as [0, 1)", what, option->key,
                      option->range);
    if (option->elements != NULL && (!is_list || count_names(option->elements) != option->list_count))
        return BROKEN("%s: option '%s': elements '%s' must name each of its %u values once", what, option->key,
                      option->elements, is_list ? option->list_count : 0);
    if ((option->flags & FUSERUN_OPTION_SCHEDULABLE) != 0 &&
        (component->kind != FUSERUN_KIND_OPTIMIZER || type != FUSERUN_OPTION_NUMBER ||
         (is_list && option->elements == NULL)))
        return BROKEN("%s: option '%s' cannot be schedulable: that is for numbers of optimizers, in lists those with "
                      "named elements",
                      what, option->key);
    return check_default(component, option, what, error);
}

/* How many of fuse_update.hyper an option takes. */
static uint32_t hyper_entries(const struct fuse_option *option)
{
    if (option->type == FUSERUN_OPTION_TEXT || option->type == FUSERUN_OPTION_PATH)
        return 0;
    return (option->flags & FUSERUN_OPTION_LIST) != 0 ? option->list_count : 1;
}

int fuse_schema_check_options(const struct fuse_component *component, const char *what, struct fuse_error *error)
{
    uint64_t hyper_count = 0;
    for (uint32_t i = 0; i < component->option_count; i++) {
        const struct fuse_option *option = &component->options[i];
        FUSE_TRY(check_option(component, option, what, error));
        for (uint32_t k = 0; k < i; k++) {
            if (strcmp(component->options[k].key, option->key) == 0)
                return BROKEN("%s: option '%s' is declared twice", what, option->key);
        }
        hyper_count += hyper_entries(option);
    }
    if (component->kind == FUSERUN_KIND_OPTIMIZER && hyper_count > FUSERUN_MAX_HYPER)
        return BROKEN("%s: its options come to %llu numbers, FUSERUN_MAX_HYPER is %d", what,
                      (unsigned long long)hyper_count, FUSERUN_MAX_HYPER);
    return FUSERUN_OK;
}

/* ---- rules --------------------------------------------------------------------------------------------------- */

/* The identifiers of "(a, b)": how many, -1 if it is no such list or names one twice. */
static int count_identifiers(const char *list)
{
    int count = 0;
    if (list == NULL || list[0] != '(')
        return -1;
    const char *at = list + 1 + strspn(list + 1, " ");
    if (strcmp(at, ")") == 0)
        return 0;
    for (;;) {
        const size_t length = strcspn(at, " ,()");
        if (length == 0 || length >= KEY_CHARS || isdigit((unsigned char)at[0]))
            return -1;
        for (size_t i = 0; i < length; i++) {
            if (!isalnum((unsigned char)at[i]) && at[i] != '_')
                return -1;
        }
        for (const char *before = list + 1; before + length < at; before++) {
            if ((before[-1] == '(' || before[-1] == ' ' || before[-1] == ',') && strncmp(before, at, length) == 0 &&
                strchr(" ,", before[length]) != NULL)
                return -1;
        }
        count++;
        at += length;
        at += strspn(at, " ");
        if (strcmp(at, ")") == 0)
            return count;
        if (*at != ',')
            return -1;
        at += 1 + strspn(at + 1, " ");
    }
}

static bool names_contain(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += length) {
        if (at > list && strchr("( ,", at[-1]) != NULL && strchr(") ,", at[length]) != NULL)
            return true;
    }
    return false;
}

/* Checkpoints keep them beside the states, so their names must differ from those. */
static int check_numbers(const struct fuse_rule *rule, const char *what, struct fuse_error *error)
{
    if (rule->number_count == 0)
        return FUSERUN_OK;
    if (rule->number_count > FUSERUN_MAX_NUMBERS)
        return BROKEN("%s: rule '%.60s' keeps %u numbers, FUSERUN_MAX_NUMBERS is %d", what, rule->name,
                      rule->number_count, FUSERUN_MAX_NUMBERS);
    char both[512];
    /* "(a, b)" and "(c)": "(a, b, c)" */
    const int length = rule->numbers == NULL || rule->numbers[0] != '('
                           ? -1
                           : snprintf(both, sizeof both, "%.*s%s%s", (int)strlen(rule->states) - 1, rule->states,
                                      rule->state_count > 0 ? ", " : "", rule->numbers + 1);
    if (length < 0 || (size_t)length >= sizeof both || names_contain(rule->numbers, "step") ||
        count_identifiers(both) != (int)(rule->state_count + rule->number_count))
        return BROKEN("%s: rule '%.60s' names its numbers '%.80s', but keeps %u, whose names must differ from its "
                      "states' and from 'step'",
                      what, rule->name, rule->numbers != NULL ? rule->numbers : "", rule->number_count);
    return FUSERUN_OK;
}

/* A tensor rule's texts, each of which is a struct of its own: as large as it is today at least. */
static int check_passes(const struct fuse_rule *rule, const char *what, struct fuse_error *error)
{
    if (rule->pass_count == 0 && rule->scratch_count == 0)
        return FUSERUN_OK;
    if (rule->update_tensor == NULL || rule->passes == NULL)
        return BROKEN("%s: rule '%.60s' has passes or scratches, but lacks %s", what, rule->name,
                      rule->passes == NULL ? "passes" : "update_tensor");
    if (rule->pass_count > FUSERUN_MAX_PASSES || rule->scratch_count > FUSERUN_MAX_SCRATCHES)
        return BROKEN("%s: rule '%.60s' has %u passes and %u scratches, at most %d and %d are possible", what,
                      rule->name, rule->pass_count, rule->scratch_count, FUSERUN_MAX_PASSES, FUSERUN_MAX_SCRATCHES);
    if (rule->scratch_count > 0 && count_identifiers(rule->scratches) != (int)rule->scratch_count)
        return BROKEN("%s: rule '%.60s' names its scratches '%.80s', but has %u", what, rule->name,
                      rule->scratches != NULL ? rule->scratches : "", rule->scratch_count);
    for (uint32_t i = 0; i < rule->pass_count; i++) {
        const struct fuse_tensor_pass *pass = rule->passes[i];
        if (pass == NULL || pass->struct_size < FUSERUN_STRUCT_SIZE(fuse_tensor_pass, over_sums) ||
            pass->name == NULL || pass->text == NULL || pass->result == NULL || pass->over_elements == NULL ||
            pass->kind < FUSERUN_OVER_ELEMENTS || pass->kind > FUSERUN_OVER_ALL ||
            (pass->kind != FUSERUN_OVER_ELEMENTS) != (pass->over_sums != NULL))
            return BROKEN("%s: rule '%.60s': its pass %u is not one", what, rule->name, i);
    }
    return FUSERUN_OK;
}

int fuse_schema_check_rule(const struct fuse_rule *rule, const char *what, struct fuse_error *error)
{
    if (rule->name == NULL || rule->name[0] == '\0')
        return BROKEN("%s: a rule has no name", what);
    if ((rule->plan_tensor == NULL) != (rule->update_tensor == NULL))
        return BROKEN("%s: rule '%.60s' lacks the callback %s, which goes with %s", what, rule->name,
                      rule->plan_tensor == NULL ? "plan_tensor" : "update_tensor",
                      rule->plan_tensor == NULL ? "update_tensor" : "plan_tensor");
    if (rule->update_tensor == NULL && (rule->update_slice == NULL || rule->update_foreach == NULL))
        return BROKEN("%s: rule '%.60s' lacks the callback %s", what, rule->name,
                      rule->update_slice == NULL ? "update_slice" : "update_foreach");
    if (rule->text == NULL)
        return BROKEN("%s: rule '%.60s' has no text", what, rule->name);
    if (rule->state_count > FUSERUN_MAX_STATES)
        return BROKEN("%s: rule '%.60s' has %u states, FUSERUN_MAX_STATES is %d", what, rule->name, rule->state_count,
                      FUSERUN_MAX_STATES);
    if (rule->scalar_count > FUSERUN_MAX_SCALARS)
        return BROKEN("%s: rule '%.60s' has %u scalars, FUSERUN_MAX_SCALARS is %d", what, rule->name,
                      rule->scalar_count, FUSERUN_MAX_SCALARS);
    if (count_identifiers(rule->states) != (int)rule->state_count)
        return BROKEN("%s: rule '%.60s' names its states '%.80s', but has %u", what, rule->name,
                      rule->states != NULL ? rule->states : "", rule->state_count);
    if (count_identifiers(rule->scalars) != (int)rule->scalar_count)
        return BROKEN("%s: rule '%.60s' names its scalars '%.80s', but has %u", what, rule->name,
                      rule->scalars != NULL ? rule->scalars : "", rule->scalar_count);
    /* Checkpoints keep each parameter's update count beside its states, under that name. */
    if (names_contain(rule->states, "step"))
        return BROKEN("%s: rule '%.60s': a state may not be called 'step'", what, rule->name);
    FUSE_TRY(check_passes(rule, what, error));
    return check_numbers(rule, what, error);
}
