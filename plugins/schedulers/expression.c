#include "expression.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PI 3.14159265358979323846
#define NAME_MAX_CHARS 31
#define NUMBER_MAX_CHARS 63

enum code {
    PUSH_NUMBER,
    PUSH_VARIABLE,
    NEGATE,
    ADD,
    SUBTRACT,
    MULTIPLY,
    DIVIDE,
    REMAINDER,
    POWER,
    LESS,
    LESS_EQUAL,
    GREATER,
    GREATER_EQUAL,
    EQUAL,
    NOT_EQUAL,
    LEAST,
    GREATEST,
    CHOOSE,
    ABS,
    CEIL,
    COS,
    EXP,
    FLOOR,
    LOG,
    LOG10,
    LOG2,
    ROUND,
    SIN,
    SQRT,
    TAN,
    TANH
};

static const struct function {
    const char *name;
    enum code code;
    int fewest, most; /* values; most 0: any number, folded two by two */
} functions[] = {
    {"abs", ABS, 1, 1},   {"ceil", CEIL, 1, 1}, {"cos", COS, 1, 1},     {"exp", EXP, 1, 1},   {"floor", FLOOR, 1, 1},
    {"if", CHOOSE, 3, 3}, {"log", LOG, 1, 1},   {"log10", LOG10, 1, 1}, {"log2", LOG2, 1, 1}, {"max", GREATEST, 2, 0},
    {"min", LEAST, 2, 0}, {"pow", POWER, 2, 2}, {"round", ROUND, 1, 1}, {"sin", SIN, 1, 1},   {"sqrt", SQRT, 1, 1},
    {"tan", TAN, 1, 1},   {"tanh", TANH, 1, 1},
};
enum { FUNCTION_COUNT = sizeof functions / sizeof functions[0] };

enum { COMPARISON = 1, SUM, PRODUCT, SIGN, EXPONENT }; /* how tightly they bind */

/* Longer spellings first. */
static const struct binary {
    const char *text;
    enum code code;
    int tightness;
} binaries[] = {
    {"**", POWER, EXPONENT},       {"^", POWER, EXPONENT},
    {"*", MULTIPLY, PRODUCT},      {"/", DIVIDE, PRODUCT},
    {"%", REMAINDER, PRODUCT},     {"+", ADD, SUM},
    {"-", SUBTRACT, SUM},          {"<=", LESS_EQUAL, COMPARISON},
    {"<", LESS, COMPARISON},       {">=", GREATER_EQUAL, COMPARISON},
    {">", GREATER, COMPARISON},    {"==", EQUAL, COMPARISON},
    {"!=", NOT_EQUAL, COMPARISON},
};
enum { BINARY_COUNT = sizeof binaries / sizeof binaries[0] };

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* What waits for its right side: an operator, or an open parenthesis, perhaps a function's. */
struct waiting {
    int tightness; /* 0: a parenthesis */
    enum code code;
    const struct function *function; /* NULL: none */
    int commas;
    int column;
};

/* Dijkstra's shunting yard. */
struct parser {
    const char *text;
    const char *at;
    const char *const *variables;
    int variable_count;
    struct expression *expression;
    int height; /* of the stack, once what was read so far is evaluated */
    struct waiting waiting[EXPRESSION_MAX_DEPTH];
    int waiting_count;
    char *message;
    size_t size;
};

static int column_of(const struct parser *parser, const char *at)
{
    return (int)(at - parser->text) + 1;
}

__attribute__((format(printf, 3, 4))) static int wrong(struct parser *parser, int column, const char *format, ...)
{
    const int head = snprintf(parser->message, parser->size, "column %d: ", column);
    va_list arguments;
    va_start(arguments, format);
    if (head > 0 && (size_t)head < parser->size)
        (void)vsnprintf(parser->message + head, parser->size - (size_t)head, format, arguments);
    va_end(arguments);
    return -1;
}

/* takes: how many values the operation takes off the stack, before it puts one on it. */
static int emit(struct parser *parser, enum code code, int takes, int variable, double number)
{
    struct expression *const expression = parser->expression;
    if (expression->count == EXPRESSION_MAX_LENGTH)
        return wrong(parser, column_of(parser, parser->at), "more than %d numbers, names and operations",
                     EXPRESSION_MAX_LENGTH);
    parser->height += 1 - takes;
    if (parser->height > EXPRESSION_MAX_DEPTH)
        return wrong(parser, column_of(parser, parser->at), "more than %d values wait for an operation",
                     EXPRESSION_MAX_DEPTH);
    expression->operations[expression->count++] = (struct operation){code, variable, number};
    return 0;
}

static int push(struct parser *parser, struct waiting waiting)
{
    if (parser->waiting_count == EXPRESSION_MAX_DEPTH)
        return wrong(parser, waiting.column, "more than %d parentheses and operators are open", EXPRESSION_MAX_DEPTH);
    parser->waiting[parser->waiting_count++] = waiting;
    return 0;
}

/* Carries out the waiting operators that bind at least so tightly, down to the innermost open parenthesis. */
static int unwind(struct parser *parser, int tightness)
{
    while (parser->waiting_count > 0) {
        const struct waiting *const top = &parser->waiting[parser->waiting_count - 1];
        if (top->tightness == 0 || top->tightness < tightness)
            break;
        parser->waiting_count--;
        if (emit(parser, top->code, top->tightness == SIGN ? 1 : 2, 0, 0) != 0)
            return -1;
    }
    return 0;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* The bytes of the character at `at`, which is not the end: 1, or all of a UTF-8 sequence. */
static int character_bytes(const char *at)
{
    int count = 1;
    while (count < 4 && (at[count] & 0xC0) == 0x80)
        count++;
    return count;
}

static void skip_blanks(struct parser *parser)
{
    while (*parser->at == ' ' || *parser->at == '\t')
        parser->at++;
}

/* strtod() wants the locale's decimal point, so it is given that. */
static int read_number(struct parser *parser)
{
    const char *const start = parser->at;
    char copy[NUMBER_MAX_CHARS + 16];
    const char *const point = localeconv()->decimal_point;
    size_t length = 0;
    int digits = 0;
    const char *at = start;
    for (int has_point = 0; is_digit(*at) || (*at == '.' && !has_point); at++) {
        if (at - start > NUMBER_MAX_CHARS - 8)
            return wrong(parser, column_of(parser, start), "a number of more than %d characters", NUMBER_MAX_CHARS - 8);
        if (*at == '.') {
            has_point = 1;
            const size_t point_length = strlen(point) < 8 ? strlen(point) : 0;
            memcpy(copy + length, point, point_length);
            length += point_length;
        } else {
            copy[length++] = *at;
            digits++;
        }
    }
    if (digits == 0)
        return wrong(parser, column_of(parser, start), "'.' alone is no number");
    const char *exponent = at;
    if (*exponent == 'e' || *exponent == 'E') {
        exponent++;
        if (*exponent == '+' || *exponent == '-')
            exponent++;
        if (is_digit(*exponent)) {
            for (; at < exponent || is_digit(*at); at++) {
                if (at - start > NUMBER_MAX_CHARS)
                    return wrong(parser, column_of(parser, start), "a number of more than %d characters",
                                 NUMBER_MAX_CHARS);
                copy[length++] = *at;
            }
        }
    }
    copy[length] = '\0';
    const double number = strtod(copy, NULL);
    if (!isfinite(number))
        return wrong(parser, column_of(parser, start), "the number is too large");
    parser->at = at;
    return emit(parser, PUSH_NUMBER, 0, 0, number);
}

static int fail_name(struct parser *parser, int column, const char *name)
{
    char known[320] = "";
    size_t used = 0;
    for (int i = 0; i < parser->variable_count && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s, ", parser->variables[i]);
    if (used < sizeof known)
        used += (size_t)snprintf(known + used, sizeof known - used, "pi, and the functions");
    for (int i = 0; i < FUNCTION_COUNT && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s %s", i > 0 ? "," : "", functions[i].name);
    return wrong(parser, column, "'%s' is unknown; there are %s", name, known);
}

/* A variable, pi, or the start of a function's parenthesis. *is_operand: it is a whole operand. */
static int read_name(struct parser *parser, int *is_operand)
{
    char name[NAME_MAX_CHARS + 1];
    const char *const start = parser->at;
    const int column = column_of(parser, start);
    size_t length = 0;
    while (is_letter(parser->at[length]) || is_digit(parser->at[length]))
        length++;
    (void)snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), start);
    parser->at += length;
    skip_blanks(parser);
    if (*parser->at == '(') {
        for (int i = 0; i < FUNCTION_COUNT; i++) {
            if (strcmp(functions[i].name, name) != 0)
                continue;
            parser->at++;
            *is_operand = 0;
            return push(parser, (struct waiting){.function = &functions[i], .column = column});
        }
        return fail_name(parser, column, name);
    }
    *is_operand = 1;
    if (strcmp(name, "pi") == 0)
        return emit(parser, PUSH_NUMBER, 0, 0, PI);
    for (int i = 0; i < parser->variable_count; i++)
        if (strcmp(parser->variables[i], name) == 0)
            return emit(parser, PUSH_VARIABLE, 0, i, 0);
    for (int i = 0; i < FUNCTION_COUNT; i++)
        if (strcmp(functions[i].name, name) == 0)
            return wrong(parser, column, "%s is a function: %s(...)", name, name);
    return fail_name(parser, column, name);
}

/* Where an operand must stand. *is_operand: one is complete. */
static int read_operand(struct parser *parser, int *is_operand)
{
    const char c = *parser->at;
    *is_operand = 0;
    if (is_digit(c) || c == '.') {
        *is_operand = 1;
        return read_number(parser);
    }
    if (is_letter(c))
        return read_name(parser, is_operand);
    const int column = column_of(parser, parser->at);
    if (c == '(' || c == '-' || c == '+') {
        parser->at++;
        if (c == '+')
            return 0;
        return push(parser, (struct waiting){.tightness = c == '-' ? SIGN : 0, .code = NEGATE, .column = column});
    }
    if (c == '\0')
        return wrong(parser, column, "expected is a number, a name or '(', but there is the end of the expression");
    return wrong(parser, column, "expected is a number, a name or '(', but there is '%.*s'",
                 character_bytes(parser->at), parser->at);
}

static int close_parenthesis(struct parser *parser)
{
    const int column = column_of(parser, parser->at);
    if (unwind(parser, COMPARISON) != 0)
        return -1;
    if (parser->waiting_count == 0)
        return wrong(parser, column, "this ')' has no '('");
    const struct waiting open = parser->waiting[--parser->waiting_count];
    parser->at++;
    if (open.function == NULL)
        return 0;
    const int values = open.commas + 1;
    const int is_folded = open.function->most == 0;
    if (values < open.function->fewest || (!is_folded && values > open.function->most))
        return wrong(parser, open.column, "%s takes %d%s value%s, but here are %d", open.function->name,
                     open.function->fewest, is_folded ? " or more" : "", open.function->fewest == 1 ? "" : "s", values);
    if (!is_folded)
        return emit(parser, open.function->code, values, 0, 0);
    for (int i = 1; i < values; i++)
        if (emit(parser, open.function->code, 2, 0, 0) != 0)
            return -1;
    return 0;
}

static int read_comma(struct parser *parser)
{
    const int column = column_of(parser, parser->at);
    if (unwind(parser, COMPARISON) != 0)
        return -1;
    if (parser->waiting_count == 0 || parser->waiting[parser->waiting_count - 1].function == NULL)
        return wrong(parser, column, "a ',' stands between the values of a function only; the decimal point is '.'");
    parser->waiting[parser->waiting_count - 1].commas++;
    parser->at++;
    return 0;
}

/* Behind a complete operand. *is_operand: still behind one. */
static int read_operator(struct parser *parser, int *is_operand)
{
    const int column = column_of(parser, parser->at);
    *is_operand = 1;
    if (*parser->at == ')')
        return close_parenthesis(parser);
    *is_operand = 0;
    if (*parser->at == ',')
        return read_comma(parser);
    for (int i = 0; i < BINARY_COUNT; i++) {
        const struct binary *const binary = &binaries[i];
        const size_t length = strlen(binary->text);
        if (strncmp(parser->at, binary->text, length) != 0)
            continue;
        /* x ^ y ^ z is x ^ (y ^ z); all others go from left to right. */
        if (unwind(parser, binary->tightness == EXPONENT ? EXPONENT + 1
                                                         : binary->tightness + (binary->tightness == COMPARISON)) != 0)
            return -1;
        if (binary->tightness == COMPARISON && parser->waiting_count > 0 &&
            parser->waiting[parser->waiting_count - 1].tightness == COMPARISON)
            return wrong(parser, column, "comparisons do not chain; multiply two of them: (a < b) * (b < c)");
        parser->at += length;
        return push(parser, (struct waiting){.tightness = binary->tightness, .code = binary->code, .column = column});
    }
    return wrong(parser, column,
                 "expected is an operator (+ - * / %% ^ < <= > >= == !=), ',' or ')', but there is '%.*s'",
                 character_bytes(parser->at), parser->at);
}

int expression_parse(const char *text, const char *const *variables, int variable_count, struct expression *expression,
                     char *message, size_t size)
{
    struct parser parser = {.text = text,
                            .at = text,
                            .variables = variables,
                            .variable_count = variable_count,
                            .expression = expression,
                            .message = message,
                            .size = size};
    int is_operand = 0;
    *expression = (struct expression){0};
    for (skip_blanks(&parser); !is_operand || *parser.at != '\0'; skip_blanks(&parser))
        if ((is_operand ? read_operator(&parser, &is_operand) : read_operand(&parser, &is_operand)) != 0)
            return -1;
    if (unwind(&parser, COMPARISON) != 0)
        return -1;
    if (parser.waiting_count == 0)
        return 0;
    const struct waiting *const open = &parser.waiting[parser.waiting_count - 1];
    if (open->function != NULL)
        return wrong(&parser, open->column, "the '(' of %s is not closed", open->function->name);
    return wrong(&parser, open->column, "this '(' is not closed");
}

/* ---- evaluating -------------------------------------------------------------------------------------------------- */

static double apply_1(enum code code, double x)
{
    switch (code) {
    case NEGATE:
        return -x;
    case ABS:
        return fabs(x);
    case CEIL:
        return ceil(x);
    case COS:
        return cos(x);
    case EXP:
        return exp(x);
    case FLOOR:
        return floor(x);
    case LOG:
        return log(x);
    case LOG10:
        return log10(x);
    case LOG2:
        return log2(x);
    case ROUND:
        return round(x);
    case SIN:
        return sin(x);
    case SQRT:
        return sqrt(x);
    case TAN:
        return tan(x);
    case TANH:
        return tanh(x);
    default:
        return NAN;
    }
}

/* Unlike fmin() and fmax(), min and max do not hide what is no number. */
static double apply_2(enum code code, double x, double y)
{
    switch (code) {
    case ADD:
        return x + y;
    case SUBTRACT:
        return x - y;
    case MULTIPLY:
        return x * y;
    case DIVIDE:
        return x / y;
    case REMAINDER:
        return fmod(x, y);
    case POWER:
        return pow(x, y);
    case LESS:
        return x < y;
    case LESS_EQUAL:
        return x <= y;
    case GREATER:
        return x > y;
    case GREATER_EQUAL:
        return x >= y;
    case EQUAL:
        return x == y;
    case NOT_EQUAL:
        return x != y;
    case LEAST:
        return isnan(x) || x < y ? x : y;
    case GREATEST:
        return isnan(x) || x > y ? x : y;
    default:
        return NAN;
    }
}

double expression_value(const struct expression *expression, const double *variables)
{
    double stack[EXPRESSION_MAX_DEPTH] = {0};
    int height = 0;
    for (int i = 0; i < expression->count; i++) {
        const struct operation *const operation = &expression->operations[i];
        const enum code code = (enum code)operation->code;
        if (code == PUSH_NUMBER) {
            stack[height++] = operation->number;
        } else if (code == PUSH_VARIABLE) {
            stack[height++] = variables[operation->variable];
        } else if (code == CHOOSE) {
            height -= 2;
            stack[height - 1] = stack[height - 1] != 0 ? stack[height] : stack[height + 1];
        } else if (code >= ADD && code <= GREATEST) {
            height--;
            stack[height - 1] = apply_2(code, stack[height - 1], stack[height]);
        } else {
            stack[height - 1] = apply_1(code, stack[height - 1]);
        }
    }
    return stack[0];
}
