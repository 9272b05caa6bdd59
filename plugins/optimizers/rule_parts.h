/* Parts that several rules share: the gradient to follow, and options that mean the same in all of them. A plugin of
 * your own needs none of this. */
#ifndef FUSE_OPTIMIZERS_RULE_PARTS_H
#define FUSE_OPTIMIZERS_RULE_PARTS_H

#include <fuserun/optimizer.h>

/* `g`, the gradient to follow, from the scalars sign (-1: climb) and weight_decay (L2). Without decay the weight is not
 * read: 0 times an infinite weight would not be 0. The choice is the same for all elements. */
#define FOLLOWED_GRADIENT const float g = weight_decay != 0.0f ? sign * grad + weight_decay * param : sign * grad;

#define LR_OPTION(default_, help_)                                                                                     \
    FUSERUN_OPTION(.key = "lr", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_SCHEDULABLE,                    \
                   .default_text = default_, .range = "[0, inf)", .help = help_)
#define EPS_OPTION(default_, help_)                                                                                    \
    FUSERUN_OPTION(.key = "eps", .type = FUSERUN_OPTION_NUMBER, .default_text = default_, .range = "[0, inf)",         \
                   .help = help_)
#define BETAS_OPTION(default_, help_)                                                                                  \
    FUSERUN_OPTION(.key = "betas", .type = FUSERUN_OPTION_NUMBER,                                                      \
                   .flags = FUSERUN_OPTION_LIST | FUSERUN_OPTION_SCHEDULABLE, .list_count = 2,                         \
                   .default_text = default_, .range = "[0, 1)", .elements = "beta1|beta2", .help = help_)
#define WEIGHT_DECAY_OPTION(default_, help_)                                                                           \
    FUSERUN_OPTION(.key = "weight_decay", .type = FUSERUN_OPTION_NUMBER, .flags = FUSERUN_OPTION_SCHEDULABLE,          \
                   .default_text = default_, .range = "[0, inf)", .help = help_)
#define L2_HELP "L2 regularisation, added to the gradient"
#define DECOUPLED_HELP "decay of the weights, times lr, at each update"
#define DECOUPLED_OPTION                                                                                               \
    FUSERUN_OPTION(.key = "decoupled_weight_decay", .type = FUSERUN_OPTION_BOOL, .default_text = "no",                 \
                   .help = "weight_decay shrinks the weights themselves, times lr, as in adamw")
#define MAXIMIZE_OPTION                                                                                                \
    FUSERUN_OPTION(.key = "maximize", .type = FUSERUN_OPTION_BOOL, .default_text = "no",                               \
                   .help = "climb: follow the gradient instead of its negative")

/* The scalar `sign` for the option maximize. */
static inline double followed_sign(double maximize)
{
    return maximize != 0.0 ? -1.0 : 1.0;
}

#endif
