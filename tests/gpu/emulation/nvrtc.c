/* NVRTC's entry points. */
#include "emulation.h"
#include "entries.h"

#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_INPUT = 3, INVALID_PROGRAM = 4, COMPILATION = 6 };

static const int architectures[] = {75, 80, 86, 89, 90, 100, 103, 110, 120, 121};
#define ARCHITECTURE_COUNT ((int)(sizeof architectures / sizeof architectures[0]))

struct program {
    char *text;
    struct emu_text *headers; /* header_count, of the caller's texts copied */
    int header_count;
    void *image;
    size_t image_bytes;
    char *log;
};

static void free_program(struct program *program)
{
    for (int i = 0; program->headers != NULL && i < program->header_count; i++) {
        free((void *)(uintptr_t)program->headers[i].text);
        free((void *)(uintptr_t)program->headers[i].name);
    }
    free(program->headers);
    free(program->text);
    free(program->image);
    free(program->log);
    free(program);
}

int nvrtcVersion(int *major, int *minor)
{
    EMU_ENTER(int);
    *major = 13;
    *minor = (int)(emu_compiler_version() % 10000); /* whoever keeps what we made asks for it */
    return SUCCESS;
}

int nvrtcGetNumSupportedArchs(int *count)
{
    EMU_ENTER(int);
    *count = ARCHITECTURE_COUNT;
    return SUCCESS;
}

int nvrtcGetSupportedArchs(int *supported)
{
    EMU_ENTER(int);
    memcpy(supported, architectures, sizeof architectures);
    return SUCCESS;
}

int nvrtcCreateProgram(void **program, const char *source, const char *name, int header_count,
                       const char *const *headers, const char *const *header_names)
{
    EMU_ENTER(int);
    (void)name;
    struct program *const made = calloc(1, sizeof *made);
    if (made == NULL)
        return OUT_OF_MEMORY;
    made->text = strdup(source);
    made->headers = calloc((size_t)header_count + 1, sizeof *made->headers);
    bool is_whole = made->text != NULL && made->headers != NULL;
    for (; is_whole && made->header_count < header_count; made->header_count++) {
        struct emu_text *const header = &made->headers[made->header_count];
        *header = (struct emu_text){strdup(headers[made->header_count]), strdup(header_names[made->header_count])};
        is_whole = header->text != NULL && header->name != NULL;
    }
    if (!is_whole) {
        free_program(made);
        return OUT_OF_MEMORY;
    }
    *program = made;
    emu_count_made(EMU_PROGRAM);
    return SUCCESS;
}

int nvrtcDestroyProgram(void **program)
{
    EMU_ENTER(int);
    if (*program == NULL)
        return INVALID_PROGRAM;
    free_program(*program);
    *program = NULL;
    emu_count_gone(EMU_PROGRAM);
    return SUCCESS;
}

int nvrtcCompileProgram(void *program, int option_count, const char *const *options)
{
    EMU_ENTER(int);
    struct program *const self = program;
    bool has_architecture = false;
    for (int i = 0; i < option_count; i++)
        has_architecture = has_architecture || strstr(options[i], "-arch") != NULL;
    if (!has_architecture)
        emu_complain("%s: no architecture is named", __func__);
    free(self->image);
    free(self->log);
    return emu_compile(self->text, self->headers, self->header_count, &self->image, &self->image_bytes, &self->log) == 0
               ? SUCCESS
               : COMPILATION;
}

static int give_size(const struct program *program, size_t *bytes)
{
    if (program->image == NULL)
        return INVALID_PROGRAM;
    *bytes = program->image_bytes;
    return SUCCESS;
}

static int give_image(const struct program *program, char *image)
{
    if (program->image == NULL)
        return INVALID_PROGRAM;
    memcpy(image, program->image, program->image_bytes);
    return SUCCESS;
}

int nvrtcGetCUBINSize(void *program, size_t *bytes)
{
    EMU_ENTER(int);
    return give_size(program, bytes);
}

int nvrtcGetCUBIN(void *program, char *image)
{
    EMU_ENTER(int);
    return give_image(program, image);
}

int nvrtcGetPTXSize(void *program, size_t *bytes)
{
    EMU_ENTER(int);
    return give_size(program, bytes);
}

int nvrtcGetPTX(void *program, char *image)
{
    EMU_ENTER(int);
    return give_image(program, image);
}

int nvrtcGetProgramLogSize(void *program, size_t *bytes)
{
    EMU_ENTER(int);
    const struct program *const self = program;
    *bytes = self->log != NULL ? strlen(self->log) + 1 : 1;
    return SUCCESS;
}

int nvrtcGetProgramLog(void *program, char *log)
{
    EMU_ENTER(int);
    const struct program *const self = program;
    strcpy(log, self->log != NULL ? self->log : "");
    return SUCCESS;
}
