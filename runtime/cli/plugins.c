#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One component, as copied as its plugin allows: a loaded plugin stays, so borrowing is enough. */
struct found {
    const struct fuse_plugin *plugin;
    const struct fuse_component *component;
    const char *file;
};

struct catalogue {
    struct found *found;
    size_t count;
    bool has_failed;
};

static void visit(void *user, const struct fuse_plugin *plugin, const struct fuse_component *component,
                  const char *file)
{
    struct catalogue *catalogue = user;
    struct found *grown = realloc(catalogue->found, (catalogue->count + 1) * sizeof *grown);
    if (grown == NULL) {
        catalogue->has_failed = true;
        return;
    }
    catalogue->found = grown;
    grown[catalogue->count++] = (struct found){plugin, component, file};
}

static void tell_broken(void *user, const char *file, const struct fuse_error *error)
{
    (void)user;
    (void)file; /* the message names it */
    fprintf(stderr, "fuserun: warning: %s\n", error->text);
}

static int compare(const void *a, const void *b)
{
    const struct found *first = a;
    const struct found *second = b;
    if (first->component->kind != second->component->kind)
        return first->component->kind < second->component->kind ? -1 : 1;
    const int names = strcmp(first->component->name, second->component->name);
    return names != 0 ? names : strcmp(first->file, second->file);
}

/* What a config would be told when it names one of them: a file that hides another, a folder that is not searched. */
static int tell_notices(struct fuse_registry *registry, const struct catalogue *catalogue)
{
    for (size_t i = 0; i < catalogue->count; i++) {
        const struct found *found = &catalogue->found[i];
        const struct fuse_component *component;
        const char *file;
        struct fuse_error ignored = FUSE_ERROR_INIT; /* of a broken file: told when it was visited */
        const int status = fuse_registry_find(registry, (enum fuse_kind)found->component->kind, found->plugin->name,
                                              &component, &file, &ignored);
        if (status == FUSERUN_ERROR_MEMORY)
            return fuse_report_failure(&ignored);
    }
    for (size_t i = 0; i < fuse_registry_notice_count(registry); i++)
        fprintf(stderr, "fuserun: warning: %s\n", fuse_registry_notice(registry, i));
    return FUSE_EXIT_DONE;
}

static const struct fuse_option *option_of(const struct fuse_component *component, uint32_t index)
{
    return (const void *)((const char *)component->options + (size_t)index * component->option_stride);
}

static const char *type_name(const struct fuse_option *option)
{
    switch ((enum fuse_option_type)option->type) {
    case FUSERUN_OPTION_BOOL:
        return "bool";
    case FUSERUN_OPTION_INTEGER:
        return "integer";
    case FUSERUN_OPTION_NUMBER:
        return "number";
    case FUSERUN_OPTION_TEXT:
        return "text";
    case FUSERUN_OPTION_CHOICE:
        return "choice";
    case FUSERUN_OPTION_PATH:
        return "path";
    case FUSERUN_OPTION_SIZE:
        return "size";
    case FUSERUN_OPTION_SPAN:
        return "span";
    case FUSERUN_OPTION_STAGE:
        return "stage";
    }
    return "unknown";
}

static void add_json_text(struct fuse_text *text, const char *key, const char *value)
{
    fuse_text_addf(text, ",\"%s\":", key);
    if (value != NULL)
        fuse_text_add_json(text, value);
    else
        fuse_text_add(text, "null");
}

static void add_json_option(struct fuse_text *text, const struct fuse_option *option)
{
    fuse_text_add(text, "{\"key\":");
    fuse_text_add_json(text, option->key);
    add_json_text(text, "type", type_name(option));
    add_json_text(text, "default", option->default_text);
    add_json_text(text, "range", option->range);
    add_json_text(text, "choices", option->choices);
    add_json_text(text, "elements", option->elements);
    add_json_text(text, "unit", option->unit);
    add_json_text(text, "help", option->help);
    fuse_text_addf(text, ",\"required\":%s,\"list\":%s,\"schedulable\":%s,\"none_allowed\":%s}",
                   (option->flags & FUSERUN_OPTION_REQUIRED) != 0 ? "true" : "false",
                   (option->flags & FUSERUN_OPTION_LIST) != 0 ? "true" : "false",
                   (option->flags & FUSERUN_OPTION_SCHEDULABLE) != 0 ? "true" : "false",
                   (option->flags & FUSERUN_OPTION_NONE_ALLOWED) != 0 ? "true" : "false");
}

static bool can_run_on(const struct fuse_optimizer *optimizer, const struct fuse_backend *backend)
{
    for (uint32_t r = 0; r < optimizer->rule_count; r++)
        if (!fuse_rule_runs_on(optimizer->rules[r], backend))
            return false;
    return true;
}

/* The names of the backends among the plugins that can run an optimizer, each between quotes. */
static void add_devices(struct fuse_text *text, const struct catalogue *catalogue,
                        const struct fuse_optimizer *optimizer, const char *quote)
{
    const char *previous = "";
    for (size_t i = 0; i < catalogue->count; i++) {
        const struct fuse_component *component = catalogue->found[i].component;
        if (component->kind != FUSERUN_KIND_BACKEND || strcmp(component->name, previous) == 0 ||
            !can_run_on(optimizer, component->api))
            continue;
        fuse_text_addf(text, "%s%s%s%s", previous[0] != '\0' ? ", " : "", quote, component->name, quote);
        previous = component->name;
    }
}

static void add_json(struct fuse_text *text, const struct catalogue *catalogue, const char *name)
{
    bool is_first = true;
    fuse_text_add(text, "[");
    for (size_t i = 0; i < catalogue->count; i++) {
        const struct found *found = &catalogue->found[i];
        const struct fuse_component *component = found->component;
        if (name != NULL && strcmp(component->name, name) != 0)
            continue;
        fuse_text_addf(text, "%s{\"kind\":\"%s\"", is_first ? "" : ",\n ", fuse_kind_name(component->kind));
        is_first = false;
        add_json_text(text, "name", component->name);
        add_json_text(text, "version", found->plugin->version);
        add_json_text(text, "file", found->file);
        add_json_text(text, "summary", component->summary);
        if (component->kind == FUSERUN_KIND_OPTIMIZER) {
            fuse_text_addf(text, ",\"tiles\":%s,\"devices\":[",
                           (component->capabilities & FUSERUN_OPTIMIZER_ELEMENTWISE) != 0 ? "true" : "false");
            add_devices(text, catalogue, component->api, "\"");
            fuse_text_add(text, "]");
        }
        fuse_text_add(text, ",\"options\":[");
        for (uint32_t o = 0; o < component->option_count; o++) {
            fuse_text_add(text, o > 0 ? "," : "");
            add_json_option(text, option_of(component, o));
        }
        fuse_text_add(text, "]}");
    }
    fuse_text_add(text, "]\n");
}

static void add_list(struct fuse_text *text, const struct catalogue *catalogue)
{
    size_t width = 4;
    for (size_t i = 0; i < catalogue->count; i++) {
        const size_t length = strlen(catalogue->found[i].component->name);
        width = length > width ? length : width;
    }
    for (size_t i = 0; i < catalogue->count; i++) {
        const struct found *found = &catalogue->found[i];
        fuse_text_addf(text, "%-9s  %-*s  %-6s  %s\n", fuse_kind_name(found->component->kind), (int)width,
                       found->component->name, found->plugin->version != NULL ? found->plugin->version : "-",
                       found->file);
    }
}

static void add_option(struct fuse_text *text, const struct fuse_option *option)
{
    const bool is_required = (option->flags & FUSERUN_OPTION_REQUIRED) != 0;
    fuse_text_addf(text, "  %s = %s\n      %s", option->key, option->default_text != NULL ? option->default_text : "",
                   (option->flags & FUSERUN_OPTION_LIST) != 0 ? "list of " : "");
    fuse_text_add(text, type_name(option));
    if (option->range != NULL)
        fuse_text_addf(text, " in %s", option->range);
    if (option->choices != NULL)
        fuse_text_addf(text, ": %s", option->choices);
    if (option->elements != NULL)
        fuse_text_addf(text, " (%s)", option->elements);
    if (option->unit != NULL)
        fuse_text_addf(text, ", in %s", option->unit);
    if ((option->flags & FUSERUN_OPTION_NONE_ALLOWED) != 0)
        fuse_text_add(text, ", or none");
    fuse_text_add(text, is_required ? ", required" : option->default_text == NULL ? ", unset by default" : "");
    if ((option->flags & FUSERUN_OPTION_SCHEDULABLE) != 0)
        fuse_text_add(text, ", a scheduler may drive it");
    fuse_text_addf(text, "\n      %s\n", option->help != NULL ? option->help : "");
}

static void add_details(struct fuse_text *text, const struct catalogue *catalogue, const struct found *found)
{
    const struct fuse_component *component = found->component;
    fuse_text_addf(text, "%s %s, version %s, license %s\n%s\nfile %s\n", fuse_kind_name(component->kind),
                   component->name, found->plugin->version != NULL ? found->plugin->version : "unknown",
                   found->plugin->license != NULL ? found->plugin->license : "unknown",
                   component->summary != NULL ? component->summary : "", found->file);
    if (component->kind == FUSERUN_KIND_OPTIMIZER) {
        fuse_text_addf(text, "modes fused (%s), per_param, foreach; devices ",
                       (component->capabilities & FUSERUN_OPTIMIZER_ELEMENTWISE) != 0 ? "by panels"
                                                                                      : "whole gradients");
        add_devices(text, catalogue, component->api, "");
        fuse_text_add(text, "\n");
    }
    fuse_text_add(text, component->option_count > 0 ? "options\n" : "no options\n");
    for (uint32_t o = 0; o < component->option_count; o++)
        add_option(text, option_of(component, o));
}

static int add_named(struct fuse_text *text, const struct catalogue *catalogue, const char *name, bool wants_json)
{
    size_t matches = 0;
    const char **names = calloc(catalogue->count + 1, sizeof *names);
    if (names == NULL)
        return fuse_report_no_memory();
    for (size_t i = 0; i < catalogue->count; i++) {
        names[i] = catalogue->found[i].component->name;
        if (strcmp(names[i], name) != 0)
            continue;
        if (!wants_json) {
            fuse_text_add(text, matches > 0 ? "\n" : "");
            add_details(text, catalogue, &catalogue->found[i]);
        }
        matches++;
    }
    const char *near = matches == 0 ? fuse_nearest(name, names, catalogue->count) : NULL;
    free(names);
    if (matches == 0)
        return near != NULL ? fuse_usage_error("no plugin is called '%s' (did you mean '%s'?)", name, near)
                            : fuse_usage_error("no plugin is called '%s'; fuserun plugins lists them", name);
    if (wants_json)
        add_json(text, catalogue, name);
    return FUSE_EXIT_DONE;
}

static int print_catalogue(const struct catalogue *catalogue, const char *name, bool wants_json)
{
    struct fuse_text text = {0};
    int status = FUSE_EXIT_DONE;
    if (name != NULL)
        status = add_named(&text, catalogue, name, wants_json);
    else if (wants_json)
        add_json(&text, catalogue, NULL);
    else
        add_list(&text, catalogue);
    if (status == FUSE_EXIT_DONE)
        status = fuse_print_text(&text);
    fuse_text_free(&text);
    return status;
}

int fuse_command_plugins(const struct fuse_arguments *arguments)
{
    int exit_status = FUSE_EXIT_DONE;
    struct catalogue catalogue = {0};
    struct fuse_registry *registry = NULL;
    struct fuse_config *config = NULL;
    struct fuse_error error = FUSE_ERROR_INIT;
    struct fuse_diagnostics *diagnostics = fuse_diagnostics_new();
    if (diagnostics == NULL) {
        exit_status = fuse_report_no_memory();
        goto out;
    }
    /* Behind --config, overrides may follow, as with every command that reads a config. */
    const size_t names = arguments->count > 0 && strchr(arguments->words[0], '=') == NULL ? 1 : 0;
    if (arguments->count > names && arguments->config == NULL) {
        exit_status = fuse_usage_error("plugins takes one NAME, or --config CONFIG.ini with overrides");
        goto out;
    }
    size_t folder_count = 0;
    const char *const *folders = NULL;
    if (arguments->config != NULL) {
        if (fuse_config_read(arguments->config, arguments->words + names, arguments->count - names, diagnostics,
                             &config) == FUSERUN_ERROR_MEMORY) {
            exit_status = fuse_report_no_memory();
            goto out;
        }
        fuse_diagnostics_print(diagnostics, stderr);
        if (config == NULL || fuse_diagnostics_error_count(diagnostics) > 0) {
            exit_status = FUSE_EXIT_USAGE;
            goto out;
        }
        folders = fuse_config_plugin_path(config, &folder_count);
    }
    const struct fuse_registry_visitor visitor = {visit, tell_broken, &catalogue};
    int status =
        fuse_registry_new(folders, folder_count, config != NULL ? fuse_config_folder(config) : NULL, &registry, &error);
    if (status == FUSERUN_OK)
        status = fuse_registry_visit_all(registry, &visitor, &error);
    if (status == FUSERUN_OK && catalogue.has_failed)
        status = fuse_fail_memory(&error, "the list of plugins", catalogue.count * sizeof *catalogue.found);
    if (status != FUSERUN_OK) {
        exit_status = fuse_report_failure(&error);
        goto out;
    }
    if (catalogue.count > 0)
        qsort(catalogue.found, catalogue.count, sizeof *catalogue.found, compare);
    exit_status = tell_notices(registry, &catalogue);
    if (exit_status == FUSE_EXIT_DONE)
        exit_status = print_catalogue(&catalogue, names > 0 ? arguments->words[0] : NULL, arguments->wants_json);
out:
    free(catalogue.found);
    fuse_registry_free(&registry);
    fuse_config_free(&config);
    fuse_diagnostics_free(&diagnostics);
    return exit_status;
}
