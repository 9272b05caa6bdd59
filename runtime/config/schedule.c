/* [scheduler], its stages, and the options that schedules drive. */
#include "config/internal.h"

#include <string.h>

struct walk {
    struct fuse_config *config;
    struct fuse_diagnostics *diagnostics;
    int depth;
    bool is_unsure; /* a plugin or a stage is unknown, so what refers to what is, too */
};

static struct fuse_section *find_stage(const struct fuse_config *config, const char *name)
{
    for (struct fuse_section *section = config->sections; section != NULL; section = section->next)
        if (section->role == FUSE_ROLE_STAGE && strcmp(section->argument, name) == 0)
            return section;
    return NULL;
}

static void fail_no_stage(struct walk *walk, struct fuse_section *section, struct fuse_entry *entry, const char *name)
{
    const char *names[64];
    size_t count = 0;
    for (struct fuse_section *other = walk->config->sections; other != NULL && count < 64; other = other->next)
        if (other->role == FUSE_ROLE_STAGE)
            names[count++] = other->argument;
    const char *nearest = fuse_nearest(name, names, count);
    walk->is_unsure = true;
    if (entry == NULL || walk->config->has_lost_section || walk->config->has_lost_layer)
        return;
    if (nearest != NULL)
        fuse_entry_fail(walk->config, walk->diagnostics, section->name, entry,
                        "there is no section [scheduler." FUSE_SHOWN "] (did you mean '%s'?)", FUSE_SHOW(name),
                        nearest);
    else
        fuse_entry_fail(walk->config, walk->diagnostics, section->name, entry,
                        "there is no section [scheduler." FUSE_SHOWN "]", FUSE_SHOW(name));
}

enum { MAX_DEPTH = 64 };

/* Judges a section and everything that it nests. */
static void follow(struct walk *walk, struct fuse_section *section)
{
    section->is_reached = true;
    if (section->value_progress != FUSE_UNTOUCHED)
        return;
    section->is_on_stack = true;
    fuse_section_make_values(walk->config, section, walk->diagnostics);
    walk->is_unsure |= section->is_plugin_unknown;
    for (size_t i = 0; section->options != NULL && i < section->options->count; i++) {
        const struct fuse_value *value = &section->options->values[i];
        if (value->option.type != FUSERUN_OPTION_STAGE)
            continue;
        struct fuse_entry *entry = fuse_section_entry(section, value->option.key);
        walk->is_unsure |= entry != NULL && entry->has_error;
        for (size_t j = 0; j < value->count; j++) {
            struct fuse_section *stage = find_stage(walk->config, value->texts[j]);
            if (stage == NULL)
                fail_no_stage(walk, section, entry, value->texts[j]);
            else if (stage->is_on_stack && entry != NULL)
                fuse_entry_fail(walk->config, walk->diagnostics, section->name, entry, "[%s] would be nested in itself",
                                stage->name);
            else if (walk->depth == MAX_DEPTH && entry != NULL)
                fuse_entry_fail(walk->config, walk->diagnostics, section->name, entry,
                                "stages are nested more than %d deep", MAX_DEPTH);
            else {
                walk->depth++;
                follow(walk, stage);
                walk->depth--;
            }
        }
    }
    section->is_on_stack = false;
}

/* Whether the comma-separated text names `name`. */
static bool names_stage(const char *text, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = text; *at != '\0';) {
        at += strspn(at, " \t,\"");
        const size_t span = strcspn(at, " \t,\"");
        if (span == length && strncmp(at, name, length) == 0)
            return true;
        at += span;
    }
    return false;
}

/* The layer whose change left the stage without anything that refers to it; NULL if nothing ever did. */
static const struct fuse_layer *who_dropped(const struct fuse_config *config, const struct fuse_section *stage)
{
    for (struct fuse_section *section = config->sections; section != NULL; section = section->next) {
        const bool is_schedule = section->role == FUSE_ROLE_SCHEDULER || section->role == FUSE_ROLE_CURVE ||
                                 section->role == FUSE_ROLE_STAGE;
        for (struct fuse_entry *entry = section->entries; is_schedule && entry != NULL; entry = entry->next)
            if ((entry->replaced_by != NULL || section->is_dropped) && section != stage &&
                names_stage(entry->text, stage->argument))
                return section->is_dropped ? section->changed_by : entry->replaced_by;
    }
    return NULL;
}

static const struct fuse_place *last_place(const struct fuse_section *section)
{
    const struct fuse_place *last = section->places;
    while (last->next != NULL)
        last = last->next;
    return last;
}

static void drop_section(struct walk *walk, struct fuse_section *section, const struct fuse_layer *layer,
                         const char *why)
{
    section->is_dropped = true;
    section->changed_by = layer;
    const struct fuse_place *place = last_place(section);
    fuse_config_say(walk->config, walk->diagnostics, place->layer, place->line, false, section->name, NULL,
                    "dropped: %s %s", layer->is_command_line ? "the command line" : layer->file, why);
}

/* Stages that nothing refers to: dropped if a later layer made them so, else mistakes. */
static void judge_unreached(struct walk *walk)
{
    for (bool is_changed = true; is_changed;) { /* a dropped one may have been what referred to the next */
        is_changed = false;
        for (struct fuse_section *stage = walk->config->sections; stage != NULL; stage = stage->next) {
            if (stage->role != FUSE_ROLE_STAGE || stage->is_reached || stage->is_dropped || stage->places == NULL)
                continue;
            const struct fuse_layer *layer = who_dropped(walk->config, stage);
            if (layer == NULL || last_place(stage)->layer->rank >= layer->rank)
                continue;
            drop_section(walk, stage, layer, "leaves nothing that refers to it");
            is_changed = true;
        }
    }
    for (struct fuse_section *stage = walk->config->sections; stage != NULL; stage = stage->next) {
        if (stage->role != FUSE_ROLE_STAGE || stage->is_reached || stage->is_dropped)
            continue;
        const struct fuse_place *place = stage->places == NULL ? NULL : last_place(stage);
        if (!walk->is_unsure && place != NULL)
            fuse_config_say(walk->config, walk->diagnostics, place->layer, place->line, true, stage->name, NULL,
                            "nothing refers to this section; a `stages` list of a scheduler would");
        follow(walk, stage); /* its own keys are judged all the same */
    }
}

/* ---- what is driven
 * ----------------------------------------------------------------------------------------------------- */

enum { MAX_DRIVABLE = 64 };

/* Adds the names that schedules may drive in a component; the texts live in the arena. */
static size_t add_drivable(struct fuse_config *config, const struct fuse_component *component,
                           const char *names[MAX_DRIVABLE], size_t count)
{
    struct fuse_option option;
    for (size_t i = 0; component != NULL && i < component->option_count; i++) {
        if (!fuse_component_option(component, i, &option) || (option.flags & FUSERUN_OPTION_SCHEDULABLE) == 0)
            continue;
        const bool is_list = (option.flags & FUSERUN_OPTION_LIST) != 0;
        for (const char *at = is_list ? option.elements : option.key; at != NULL && count < MAX_DRIVABLE;) {
            const char *bar = is_list ? strchr(at, '|') : NULL;
            const char *name = fuse_arena_strndup(&config->arena, at, bar == NULL ? strlen(at) : (size_t)(bar - at));
            if (name != NULL && fuse_options_flat_index(component, name, NULL) >= 0)
                names[count++] = name;
            at = bar == NULL ? NULL : bar + 1;
        }
    }
    return count;
}

static bool is_in(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

struct drives {
    const char *names[MAX_DRIVABLE]; /* that can be driven */
    size_t count;
    const char *taken[MAX_DRIVABLE]; /* that are */
    size_t taken_count;
};

/* "there is nothing 'lrr' that a schedule could drive; ..." at the entry, or at the section. */
static void fail_drive(struct walk *walk, const struct fuse_section *section, struct fuse_entry *entry,
                       const struct drives *drives, const char *name)
{
    struct fuse_text text = {0};
    fuse_text_addf(&text, "the optimizer has no '" FUSE_SHOWN "' that a schedule may drive; it has ", FUSE_SHOW(name));
    for (size_t i = 0; i < drives->count; i++)
        if (!is_in(drives->names, i, drives->names[i]))
            fuse_text_addf(&text, "%s%s", i == 0 ? "" : ", ", drives->names[i]);
    if (drives->count == 0)
        fuse_text_add(&text, "none");
    const char *nearest = fuse_nearest_key(name, drives->names, drives->count);
    if (nearest != NULL)
        fuse_text_addf(&text, " (did you mean '%s'?)", nearest);
    const char *message = text.failed ? "unknown option" : text.data;
    if (entry != NULL)
        fuse_entry_fail(walk->config, walk->diagnostics, section->name, entry, "%s", message);
    else
        fuse_section_fail(walk->config, walk->diagnostics, section, NULL, "%s", message);
    fuse_text_free(&text);
}

static void judge_drives(struct walk *walk, struct fuse_section *section, struct drives *drives)
{
    size_t count = 0;
    const char *const *names = fuse_option_texts(section->options, "drives", &count);
    struct fuse_entry *entry = fuse_section_entry(section, "drives");
    if (section->role == FUSE_ROLE_CURVE && entry != NULL && !entry->has_error &&
        (count != 1 || strcmp(names[0], section->argument) != 0)) {
        fuse_entry_fail(walk->config, walk->diagnostics, section->name, entry,
                        "the section's name says that it drives '%s'", section->argument);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_in(drives->names, drives->count, names[i]))
            fail_drive(walk, section, entry, drives, names[i]);
        else if (is_in(drives->taken, drives->taken_count, names[i])) {
            if (entry != NULL)
                fuse_entry_fail(walk->config, walk->diagnostics, section->name, entry, "'%s' is driven twice",
                                names[i]);
            else
                fuse_section_fail(walk->config, walk->diagnostics, section, NULL, "'%s' is driven twice", names[i]);
        } else if (drives->taken_count < MAX_DRIVABLE)
            drives->taken[drives->taken_count++] = names[i];
    }
}

void fuse_schedules_resolve(struct fuse_config *config, struct fuse_diagnostics *diagnostics)
{
    struct walk walk = {.config = config, .diagnostics = diagnostics};
    struct fuse_section *optimizer = fuse_config_section(config, "optimizer");
    struct drives drives = {0};
    bool is_optimizer_known = true;
    for (struct fuse_section *section = config->sections; section != NULL; section = section->next)
        if (section->role == FUSE_ROLE_OPTIMIZER || section->role == FUSE_ROLE_GROUP) {
            is_optimizer_known = is_optimizer_known && !section->is_plugin_unknown;
            drives.count = add_drivable(config, section->component, drives.names, drives.count);
        }
    for (struct fuse_section *section = config->sections; section != NULL; section = section->next) {
        if (section->role != FUSE_ROLE_SCHEDULER && section->role != FUSE_ROLE_CURVE)
            continue;
        if (section->role == FUSE_ROLE_SCHEDULER && section->places == NULL) {
            section->is_dropped = true; /* only there because a ${} looked at its defaults */
            continue;
        }
        if (section->role == FUSE_ROLE_CURVE && is_optimizer_known && optimizer->changed_by != NULL &&
            last_place(section)->layer->rank < optimizer->changed_by->rank &&
            !is_in(drives.names, drives.count, section->argument)) {
            drop_section(&walk, section, optimizer->changed_by, "changes the optimizer to one that has no such option");
            continue;
        }
        follow(&walk, section);
    }
    judge_unreached(&walk);
    /* [scheduler] first: what it drives is not free for [scheduler OPTION], wherever that stands. */
    for (int pass = 0; pass < 2 && is_optimizer_known; pass++)
        for (struct fuse_section *section = config->sections; section != NULL; section = section->next)
            if (section->role == (pass == 0 ? FUSE_ROLE_SCHEDULER : FUSE_ROLE_CURVE) && !section->is_dropped)
                judge_drives(&walk, section, &drives);
}
