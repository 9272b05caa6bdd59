/* The binary layout that plugins rely on, on 64-bit machines: offset and size of every public field, the value of every
 * public constant. A line here may only ever be added, at the end of its struct; one that must change means a new
 * FUSERUN_ABI_MAJOR. */
#include <fuserun/abi.h>
#include <fuserun/backend.h>
#include <fuserun/dataset.h>
#include <fuserun/files.h>
#include <fuserun/model.h>
#include <fuserun/optimizer.h>
#include <fuserun/scheduler.h>

#define FIELD(type, field, offset, bytes)                                                                              \
    _Static_assert(offsetof(struct type, field) == (offset), #type "." #field " has moved");                           \
    _Static_assert(sizeof(((struct type *)0)->field) == (bytes), #type "." #field " has another size")
#define VALUE(constant, value) _Static_assert((constant) == (value), #constant " has another value")

#if __SIZEOF_POINTER__ == 8

/* ---- abi.h ------------------------------------------------------------------------------------------------- */

FIELD(fuse_span, at, 0, 8);
FIELD(fuse_span, bytes, 8, 8);

FIELD(fuse_error, struct_size, 0, 4);
FIELD(fuse_error, code, 4, 4);
FIELD(fuse_error, key, 8, 96);
FIELD(fuse_error, text, 104, 640);

FIELD(fuse_option, struct_size, 0, 4);
FIELD(fuse_option, type, 4, 4);
FIELD(fuse_option, flags, 8, 4);
FIELD(fuse_option, list_count, 12, 4);
FIELD(fuse_option, key, 16, 8);
FIELD(fuse_option, default_text, 24, 8);
FIELD(fuse_option, range, 32, 8);
FIELD(fuse_option, choices, 40, 8);
FIELD(fuse_option, elements, 48, 8);
FIELD(fuse_option, unit, 56, 8);
FIELD(fuse_option, help, 64, 8);

FIELD(fuse_host, struct_size, 0, 4);
FIELD(fuse_host, abi_major, 4, 2);
FIELD(fuse_host, abi_minor, 6, 2);
FIELD(fuse_host, log, 8, 8);
FIELD(fuse_host, fail, 16, 8);
FIELD(fuse_host, option_is_set, 24, 8);
FIELD(fuse_host, option_bool, 32, 8);
FIELD(fuse_host, option_integer, 40, 8);
FIELD(fuse_host, option_number, 48, 8);
FIELD(fuse_host, option_text, 56, 8);
FIELD(fuse_host, option_integers, 64, 8);
FIELD(fuse_host, option_numbers, 72, 8);
FIELD(fuse_host, option_texts, 80, 8);
FIELD(fuse_host, schedule_create, 88, 8);
FIELD(fuse_host, schedule_value, 96, 8);
FIELD(fuse_host, schedule_momentum, 104, 8);
FIELD(fuse_host, schedule_cycles_momentum, 112, 8);
FIELD(fuse_host, random_uniform, 120, 8);
FIELD(fuse_host, random_bits, 128, 8);
FIELD(fuse_host, get_service, 136, 8);
FIELD(fuse_host, schedule_observe, 144, 8);

FIELD(fuse_abi, struct_size, 0, 4);
FIELD(fuse_abi, magic, 4, 4);
FIELD(fuse_abi, major, 8, 2);
FIELD(fuse_abi, minor, 10, 2);
FIELD(fuse_abi, requires_minor, 12, 2);
FIELD(fuse_abi, max_dims, 14, 2);
FIELD(fuse_abi, pointer_bytes, 16, 4);
FIELD(fuse_abi, dtype_count, 20, 4);
FIELD(fuse_abi, option_type_count, 24, 4);

FIELD(fuse_component, struct_size, 0, 4);
FIELD(fuse_component, kind, 4, 4);
FIELD(fuse_component, name, 8, 8);
FIELD(fuse_component, summary, 16, 8);
FIELD(fuse_component, capabilities, 24, 8);
FIELD(fuse_component, options, 32, 8);
FIELD(fuse_component, option_count, 40, 4);
FIELD(fuse_component, option_stride, 44, 4);
FIELD(fuse_component, api, 48, 8);

FIELD(fuse_plugin, struct_size, 0, 4);
FIELD(fuse_plugin, abi, 4, 28);
FIELD(fuse_plugin, name, 32, 8);
FIELD(fuse_plugin, version, 40, 8);
FIELD(fuse_plugin, license, 48, 8);
FIELD(fuse_plugin, components, 56, 8);
FIELD(fuse_plugin, component_count, 64, 4);
FIELD(fuse_plugin, component_stride, 68, 4);

/* ---- optimizer.h ------------------------------------------------------------------------------------------- */

FIELD(fuse_slice, struct_size, 0, 4);
FIELD(fuse_slice, state_count, 4, 4);
FIELD(fuse_slice, param, 8, 8);
FIELD(fuse_slice, grad, 16, 8);
FIELD(fuse_slice, states, 24, 8);
FIELD(fuse_slice, scalars, 32, 8);
FIELD(fuse_slice, count, 40, 8);
FIELD(fuse_slice, first, 48, 8);

FIELD(fuse_rule, struct_size, 0, 4);
FIELD(fuse_rule, state_count, 4, 4);
FIELD(fuse_rule, scalar_count, 8, 4);
FIELD(fuse_rule, reserved, 12, 4);
FIELD(fuse_rule, name, 16, 8);
FIELD(fuse_rule, states, 24, 8);
FIELD(fuse_rule, scalars, 32, 8);
FIELD(fuse_rule, text, 40, 8);
FIELD(fuse_rule, update_slice, 48, 8);
FIELD(fuse_rule, update_foreach, 56, 8);
FIELD(fuse_rule, number_count, 64, 4);
FIELD(fuse_rule, reserved2, 68, 4);
FIELD(fuse_rule, numbers, 72, 8);
FIELD(fuse_rule, plan_tensor, 80, 8);
FIELD(fuse_rule, update_tensor, 88, 8);
FIELD(fuse_rule, passes, 96, 8);
FIELD(fuse_rule, pass_count, 104, 4);
FIELD(fuse_rule, scratch_count, 108, 4);
FIELD(fuse_rule, scratches, 112, 8);

FIELD(fuse_tensor_product, m, 0, 8);
FIELD(fuse_tensor_product, n, 8, 8);
FIELD(fuse_tensor_product, k, 16, 8);
FIELD(fuse_tensor_product, is_a_transposed, 24, 4);
FIELD(fuse_tensor_product, is_b_transposed, 28, 4);

FIELD(fuse_tensor_plan, struct_size, 0, 4);
FIELD(fuse_tensor_plan, rank, 4, 4);
FIELD(fuse_tensor_plan, shape, 8, 8);
FIELD(fuse_tensor_plan, hyper, 16, 8);
FIELD(fuse_tensor_plan, state_counts, 24, 64);
FIELD(fuse_tensor_plan, scratch_bytes, 88, 8);
FIELD(fuse_tensor_plan, products, 96, 256);
FIELD(fuse_tensor_plan, product_count, 352, 4);
FIELD(fuse_tensor_plan, reserved, 356, 4);
FIELD(fuse_tensor_plan, scratch_counts, 360, 64);
FIELD(fuse_tensor_plan, sum_count, 424, 8);

FIELD(fuse_tensor_update, struct_size, 0, 4);
FIELD(fuse_tensor_update, rank, 4, 4);
FIELD(fuse_tensor_update, shape, 8, 8);
FIELD(fuse_tensor_update, param, 16, 8);
FIELD(fuse_tensor_update, grad, 24, 8);
FIELD(fuse_tensor_update, states, 32, 8);
FIELD(fuse_tensor_update, scalars, 40, 8);
FIELD(fuse_tensor_update, scratch, 48, 8);
FIELD(fuse_tensor_update, split, 56, 8);
FIELD(fuse_tensor_update, multiply, 64, 8);
FIELD(fuse_tensor_update, workspace, 72, 8);
FIELD(fuse_tensor_update, backend, 80, 8);
FIELD(fuse_tensor_update, scratches, 88, 8);
FIELD(fuse_tensor_update, run_pass, 96, 8);

FIELD(fuse_pass_call, struct_size, 0, 4);
FIELD(fuse_pass_call, reserved, 4, 4);
FIELD(fuse_pass_call, update, 8, 8);
FIELD(fuse_pass_call, matrices, 16, 8);
FIELD(fuse_pass_call, rows, 24, 8);
FIELD(fuse_pass_call, columns, 32, 8);
FIELD(fuse_pass_call, sums, 40, 8);

FIELD(fuse_tensor_pass, struct_size, 0, 4);
FIELD(fuse_tensor_pass, kind, 4, 4);
FIELD(fuse_tensor_pass, name, 8, 8);
FIELD(fuse_tensor_pass, text, 16, 8);
FIELD(fuse_tensor_pass, result, 24, 8);
FIELD(fuse_tensor_pass, over_elements, 32, 8);
FIELD(fuse_tensor_pass, over_sums, 40, 8);

FIELD(fuse_update, struct_size, 0, 4);
FIELD(fuse_update, hyper_count, 4, 4);
FIELD(fuse_update, hyper, 8, 8);
FIELD(fuse_update, step, 16, 8);
FIELD(fuse_update, numbers, 24, 8);

FIELD(fuse_optimizer, struct_size, 0, 4);
FIELD(fuse_optimizer, rule_count, 4, 4);
FIELD(fuse_optimizer, rules, 8, 8);
FIELD(fuse_optimizer, check, 16, 8);
FIELD(fuse_optimizer, select_rule, 24, 8);
FIELD(fuse_optimizer, prepare, 32, 8);

/* ---- scheduler.h ------------------------------------------------------------------------------------------- */

FIELD(fuse_schedule_context, struct_size, 0, 4);
FIELD(fuse_schedule_context, unit_is_epoch, 4, 4);
FIELD(fuse_schedule_context, length, 8, 8);
FIELD(fuse_schedule_context, host_data, 16, 8);
FIELD(fuse_schedule_context, updates_per_epoch, 24, 8);

FIELD(fuse_schedule_query, struct_size, 0, 4);
FIELD(fuse_schedule_query, group_index, 4, 4);
FIELD(fuse_schedule_query, position, 8, 8);
FIELD(fuse_schedule_query, base, 16, 8);
FIELD(fuse_schedule_query, group, 24, 8);
FIELD(fuse_schedule_query, option, 32, 8);

FIELD(fuse_scheduler, struct_size, 0, 4);
FIELD(fuse_scheduler, create, 8, 8);
FIELD(fuse_scheduler, destroy, 16, 8);
FIELD(fuse_scheduler, value, 24, 8);
FIELD(fuse_scheduler, cycles_momentum, 32, 8);
FIELD(fuse_scheduler, momentum, 40, 8);
FIELD(fuse_scheduler, warn, 48, 8);
FIELD(fuse_scheduler, observe, 56, 8);
FIELD(fuse_scheduler, metric, 64, 8);
FIELD(fuse_scheduler, state_count, 72, 4);
FIELD(fuse_scheduler, get_state, 80, 8);
FIELD(fuse_scheduler, set_state, 88, 8);

FIELD(fuse_schedule_observation, struct_size, 0, 4);
FIELD(fuse_schedule_observation, reserved, 4, 4);
FIELD(fuse_schedule_observation, position, 8, 8);
FIELD(fuse_schedule_observation, metric, 16, 8);
FIELD(fuse_schedule_observation, value, 24, 8);

/* ---- model.h ----------------------------------------------------------------------------------------------- */

FIELD(fuse_init, struct_size, 0, 4);
FIELD(fuse_init, kind, 4, 4);
FIELD(fuse_init, a, 8, 8);
FIELD(fuse_init, b, 16, 8);

FIELD(fuse_gradient, struct_size, 0, 4);
FIELD(fuse_gradient, rank, 4, 4);
FIELD(fuse_gradient, parameter, 8, 8);
FIELD(fuse_gradient, shape, 16, 64);
FIELD(fuse_gradient, values, 80, 8);
FIELD(fuse_gradient, first, 88, 8);
FIELD(fuse_gradient, count, 96, 8);
FIELD(fuse_gradient, is_panel, 104, 4);

FIELD(fuse_gradient_callback, struct_size, 0, 4);
FIELD(fuse_gradient_callback, form, 4, 4);
FIELD(fuse_gradient_callback, gradient, 8, 8);
FIELD(fuse_gradient_callback, user, 16, 8);
FIELD(fuse_gradient_callback, spans, 24, 8);

FIELD(fuse_graph_api, struct_size, 0, 4);
FIELD(fuse_graph_api, parameter, 8, 8);
FIELD(fuse_graph_api, linear, 16, 8);
FIELD(fuse_graph_api, relu, 24, 8);
FIELD(fuse_graph_api, gelu, 32, 8);
FIELD(fuse_graph_api, tanh, 40, 8);
FIELD(fuse_graph_api, add, 48, 8);
FIELD(fuse_graph_api, flatten, 56, 8);
FIELD(fuse_graph_api, shape, 64, 8);
FIELD(fuse_graph_api, on_gradient, 72, 8);
FIELD(fuse_graph_api, status, 80, 8);
FIELD(fuse_graph_api, fail, 88, 8);
FIELD(fuse_graph_api, patches, 96, 8);
FIELD(fuse_graph_api, layer_norm, 104, 8);
FIELD(fuse_graph_api, attention, 112, 8);
FIELD(fuse_graph_api, prepend, 120, 8);
FIELD(fuse_graph_api, add_batch, 128, 8);
FIELD(fuse_graph_api, select, 136, 8);
FIELD(fuse_graph_api, dropout, 144, 8);
FIELD(fuse_graph_api, block, 152, 8);

FIELD(fuse_model, struct_size, 0, 4);
FIELD(fuse_model, build, 8, 8);

/* ---- dataset.h --------------------------------------------------------------------------------------------- */

FIELD(fuse_dataset_info, struct_size, 0, 4);
FIELD(fuse_dataset_info, target_kind, 4, 4);
FIELD(fuse_dataset_info, sample_count, 8, 8);
FIELD(fuse_dataset_info, class_count, 16, 8);
FIELD(fuse_dataset_info, input_rank, 24, 4);
FIELD(fuse_dataset_info, target_rank, 28, 4);
FIELD(fuse_dataset_info, input_shape, 32, 64);
FIELD(fuse_dataset_info, target_shape, 96, 64);
FIELD(fuse_dataset_info, cache_bytes, 160, 8);

FIELD(fuse_dataset_context, struct_size, 0, 4);
FIELD(fuse_dataset_context, for_evaluation, 4, 4);
FIELD(fuse_dataset_context, seed, 8, 8);
FIELD(fuse_dataset_context, target_wanted, 16, 4);

FIELD(fuse_batch, struct_size, 0, 4);
FIELD(fuse_batch, reserved, 4, 4);
FIELD(fuse_batch, indices, 8, 8);
FIELD(fuse_batch, count, 16, 8);
FIELD(fuse_batch, ordinal, 24, 8);
FIELD(fuse_batch, inputs, 32, 8);
FIELD(fuse_batch, classes, 40, 8);
FIELD(fuse_batch, values, 48, 8);

FIELD(fuse_dataset, struct_size, 0, 4);
FIELD(fuse_dataset, open, 8, 8);
FIELD(fuse_dataset, close, 16, 8);
FIELD(fuse_dataset, describe, 24, 8);
FIELD(fuse_dataset, load, 32, 8);
FIELD(fuse_dataset, read, 40, 8);

/* ---- backend.h --------------------------------------------------------------------------------------------- */

FIELD(fuse_operand, dtype, 0, 4);
FIELD(fuse_operand, rank, 4, 4);
FIELD(fuse_operand, shape, 8, 64);

FIELD(fuse_op, struct_size, 0, 4);
FIELD(fuse_op, kind, 4, 4);
FIELD(fuse_op, flags, 8, 4);
FIELD(fuse_op, input_count, 12, 4);
FIELD(fuse_op, output_count, 16, 4);
FIELD(fuse_op, reserved, 20, 4);
FIELD(fuse_op, inputs, 24, 576);
FIELD(fuse_op, outputs, 600, 576);
FIELD(fuse_op, integers, 1176, 64);
FIELD(fuse_op, numbers, 1240, 64);

FIELD(fuse_panel_hook, panel, 0, 8);
FIELD(fuse_panel_hook, user, 8, 8);

FIELD(fuse_kernel_call, struct_size, 0, 4);
FIELD(fuse_kernel_call, reserved, 4, 4);
FIELD(fuse_kernel_call, inputs, 8, 8);
FIELD(fuse_kernel_call, outputs, 16, 8);
FIELD(fuse_kernel_call, workspace, 24, 8);
FIELD(fuse_kernel_call, scalars, 32, 8);
FIELD(fuse_kernel_call, panel, 40, 8);
FIELD(fuse_kernel_call, seed, 48, 8);
FIELD(fuse_kernel_call, draw, 56, 8);
FIELD(fuse_kernel_call, panel_spans, 64, 8);

FIELD(fuse_kernel_info, struct_size, 0, 4);
FIELD(fuse_kernel_info, panel_count, 4, 4);
FIELD(fuse_kernel_info, panel_rows, 8, 8);
FIELD(fuse_kernel_info, workspace_bytes, 16, 8);

FIELD(fuse_backend_options, struct_size, 0, 4);
FIELD(fuse_backend_options, device_index, 4, 4);
FIELD(fuse_backend_options, thread_count, 8, 4);
FIELD(fuse_backend_options, precision, 12, 4);
FIELD(fuse_backend_options, allows_tf32, 16, 4);

FIELD(fuse_backend_info, struct_size, 0, 4);
FIELD(fuse_backend_info, worker_count, 4, 4);
FIELD(fuse_backend_info, name, 8, 8);
FIELD(fuse_backend_info, description, 16, 8);
FIELD(fuse_backend_info, own_bytes, 24, 8);
FIELD(fuse_backend_info, free_bytes, 32, 8);
FIELD(fuse_backend_info, total_bytes, 40, 8);

FIELD(fuse_backend, struct_size, 0, 4);
FIELD(fuse_backend, device_count, 8, 8);
FIELD(fuse_backend, open, 16, 8);
FIELD(fuse_backend, close, 24, 8);
FIELD(fuse_backend, describe, 32, 8);
FIELD(fuse_backend, allocate, 40, 8);
FIELD(fuse_backend, release, 48, 8);
FIELD(fuse_backend, upload, 56, 8);
FIELD(fuse_backend, download, 64, 8);
FIELD(fuse_backend, synchronize, 72, 8);
FIELD(fuse_backend, compile, 80, 8);
FIELD(fuse_backend, discard, 88, 8);
FIELD(fuse_backend, run, 96, 8);
FIELD(fuse_backend, compile_rule, 104, 8);
FIELD(fuse_backend, discard_rule, 112, 8);
FIELD(fuse_backend, update, 120, 8);
FIELD(fuse_backend, update_panel, 128, 8);
FIELD(fuse_backend, has_nonfinite, 136, 8);
FIELD(fuse_backend, scale, 144, 8);
FIELD(fuse_backend, clamp, 152, 8);
FIELD(fuse_backend, sum_squares, 160, 8);
FIELD(fuse_backend, clear, 168, 8);
FIELD(fuse_backend, compile_tensor, 176, 8);
FIELD(fuse_backend, discard_tensor, 184, 8);
FIELD(fuse_backend, update_tensor, 192, 8);
FIELD(fuse_backend, allocate_staging, 200, 8);
FIELD(fuse_backend, release_staging, 208, 8);
FIELD(fuse_backend, upload_staged, 216, 8);
FIELD(fuse_backend, watch_begin, 224, 8);
FIELD(fuse_backend, watch, 232, 8);
FIELD(fuse_backend, watched, 240, 8);
FIELD(fuse_backend, describe_libraries, 248, 8);

/* ---- files.h ----------------------------------------------------------------------------------------------- */

FIELD(fuse_safetensors_entry, struct_size, 0, 4);
FIELD(fuse_safetensors_entry, rank, 4, 4);
FIELD(fuse_safetensors_entry, name, 8, 8);
FIELD(fuse_safetensors_entry, dtype, 16, 8);
FIELD(fuse_safetensors_entry, shape, 24, 8);
FIELD(fuse_safetensors_entry, element_count, 32, 8);
FIELD(fuse_safetensors_entry, offset, 40, 8);
FIELD(fuse_safetensors_entry, byte_count, 48, 8);

FIELD(fuse_file_services, struct_size, 0, 4);
FIELD(fuse_file_services, open, 8, 8);
FIELD(fuse_file_services, close, 16, 8);
FIELD(fuse_file_services, count, 24, 8);
FIELD(fuse_file_services, entry, 32, 8);
FIELD(fuse_file_services, find, 40, 8);
FIELD(fuse_file_services, read, 48, 8);

/* Structs that lie inside others or in arrays whose elements are found by their size, so that they can never grow. */
_Static_assert(sizeof(struct fuse_abi) == 28, "struct fuse_abi lies inside struct fuse_plugin");
_Static_assert(sizeof(struct fuse_slice) == 56, "slices are handed over as arrays");
_Static_assert(sizeof(struct fuse_operand) == 72, "operands lie inside struct fuse_op");

#endif

/* ---- constants ------------------------------------------------------------------------------------------ */

VALUE(FUSERUN_ABI_MAGIC, 0x46555345u);
VALUE(FUSERUN_ABI_MAJOR, 1);
VALUE(FUSERUN_MAX_DIMS, 8);
VALUE(FUSERUN_DTYPE_COUNT, 5);
VALUE(FUSERUN_OPTION_TYPE_COUNT, 9);
VALUE(FUSERUN_KIND_COUNT, 5);
VALUE(FUSERUN_MAX_STATES, 8);
VALUE(FUSERUN_MAX_SCALARS, 16);
VALUE(FUSERUN_MAX_NUMBERS, 4);
VALUE(FUSERUN_MAX_PRODUCTS, 8);
VALUE(FUSERUN_MAX_HYPER, 32);
VALUE(FUSERUN_MAX_OPERANDS, 8);

VALUE(FUSERUN_OK, 0);
VALUE(FUSERUN_ERROR_CONFIG, -1);
VALUE(FUSERUN_ERROR_IO, -2);
VALUE(FUSERUN_ERROR_FORMAT, -3);
VALUE(FUSERUN_ERROR_MEMORY, -4);
VALUE(FUSERUN_ERROR_PLUGIN, -5);
VALUE(FUSERUN_ERROR_UNSUPPORTED, -6);
VALUE(FUSERUN_ERROR_NUMERIC, -7);
VALUE(FUSERUN_ERROR_DATA, -8);
VALUE(FUSERUN_ERROR_INTERNAL, -9);
VALUE(FUSERUN_ERROR_INTERRUPTED, -10);
VALUE(FUSERUN_ERROR_DEVICE, -11);

VALUE(FUSERUN_LOG_DEBUG, 1);
VALUE(FUSERUN_LOG_INFO, 2);
VALUE(FUSERUN_LOG_WARNING, 3);
VALUE(FUSERUN_LOG_ERROR, 4);

VALUE(FUSERUN_FLOAT32, 1);
VALUE(FUSERUN_BFLOAT16, 2);
VALUE(FUSERUN_FLOAT64, 3);
VALUE(FUSERUN_INT64, 4);
VALUE(FUSERUN_UINT8, 5);

VALUE(FUSERUN_OPTION_BOOL, 1);
VALUE(FUSERUN_OPTION_INTEGER, 2);
VALUE(FUSERUN_OPTION_NUMBER, 3);
VALUE(FUSERUN_OPTION_TEXT, 4);
VALUE(FUSERUN_OPTION_CHOICE, 5);
VALUE(FUSERUN_OPTION_PATH, 6);
VALUE(FUSERUN_OPTION_SIZE, 7);
VALUE(FUSERUN_OPTION_SPAN, 8);
VALUE(FUSERUN_OPTION_STAGE, 9);

VALUE(FUSERUN_OPTION_REQUIRED, 1);
VALUE(FUSERUN_OPTION_LIST, 2);
VALUE(FUSERUN_OPTION_SCHEDULABLE, 4);
VALUE(FUSERUN_OPTION_NONE_ALLOWED, 8);
VALUE(FUSERUN_OPTION_EMPTY_ALLOWED, 16);

VALUE(FUSERUN_KIND_OPTIMIZER, 1);
VALUE(FUSERUN_KIND_SCHEDULER, 2);
VALUE(FUSERUN_KIND_MODEL, 3);
VALUE(FUSERUN_KIND_DATASET, 4);
VALUE(FUSERUN_KIND_BACKEND, 5);

VALUE(FUSERUN_OPTIMIZER_ELEMENTWISE, 1);
VALUE(FUSERUN_OPTIMIZER_WHOLE, 2);
VALUE(FUSERUN_OVER_ELEMENTS, 1);
VALUE(FUSERUN_OVER_ROWS, 2);
VALUE(FUSERUN_OVER_COLUMNS, 3);
VALUE(FUSERUN_OVER_ALL, 4);
VALUE(FUSERUN_SCHEDULER_RISES, 1);

VALUE(FUSERUN_INIT_ZEROS, 1);
VALUE(FUSERUN_INIT_CONSTANT, 2);
VALUE(FUSERUN_INIT_UNIFORM, 3);
VALUE(FUSERUN_INIT_NORMAL, 4);
VALUE(FUSERUN_INIT_TRUNC_NORMAL, 5);

VALUE(FUSERUN_GRADIENT_PANELS, 1);
VALUE(FUSERUN_GRADIENT_WHOLE, 2);

VALUE(FUSERUN_TARGET_CLASS, 1);
VALUE(FUSERUN_TARGET_VALUES, 2);
VALUE(FUSERUN_TARGET_NONE, 3);

VALUE(FUSERUN_OP_LINEAR, 1);
VALUE(FUSERUN_OP_LINEAR_DX, 2);
VALUE(FUSERUN_OP_LINEAR_DW, 3);
VALUE(FUSERUN_OP_LINEAR_DB, 4);
VALUE(FUSERUN_OP_RELU, 5);
VALUE(FUSERUN_OP_RELU_DX, 6);
VALUE(FUSERUN_OP_GELU, 7);
VALUE(FUSERUN_OP_GELU_DX, 8);
VALUE(FUSERUN_OP_TANH, 9);
VALUE(FUSERUN_OP_TANH_DX, 10);
VALUE(FUSERUN_OP_ADD, 11);
VALUE(FUSERUN_OP_COPY, 12);
VALUE(FUSERUN_OP_CROSS_ENTROPY, 13);
VALUE(FUSERUN_OP_MSE, 14);
VALUE(FUSERUN_OP_SUM_LOSS, 15);
VALUE(FUSERUN_OP_PATCHES, 16);
VALUE(FUSERUN_OP_LAYER_NORM, 17);
VALUE(FUSERUN_OP_LAYER_NORM_DX, 18);
VALUE(FUSERUN_OP_LAYER_NORM_DW, 19);
VALUE(FUSERUN_OP_ATTENTION, 20);
VALUE(FUSERUN_OP_ATTENTION_DX, 21);
VALUE(FUSERUN_OP_PREPEND, 22);
VALUE(FUSERUN_OP_PREPEND_DX, 23);
VALUE(FUSERUN_OP_PREPEND_DW, 24);
VALUE(FUSERUN_OP_ADD_BATCH, 25);
VALUE(FUSERUN_OP_ADD_BATCH_DW, 26);
VALUE(FUSERUN_OP_SELECT, 27);
VALUE(FUSERUN_OP_SELECT_DX, 28);
VALUE(FUSERUN_OP_DROPOUT, 29);
VALUE(FUSERUN_OP_SUM_SQUARES, 30);
VALUE(FUSERUN_OP_LINEAR_DW_NORM, 31);
VALUE(FUSERUN_OP_LINEAR_DW_SUM, 32);
VALUE(FUSERUN_OP_LINEAR_DW_SUM_NORM, 33);

VALUE(FUSERUN_OP_ACCUMULATE, 1);
VALUE(FUSERUN_OP_PANELS, 2);

/* Nothing to run: that it compiles is the test. */
int main(void)
{
    return 0;
}
