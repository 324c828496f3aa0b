# AdamW as transformer backbones want it: no decay on norms, biases and position tables.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.,
        bias_decay_mult=0.,
        custom_keys={
            'pos_embed': dict(decay_mult=0.),
            'positional_encoding': dict(decay_mult=0.),
            'relative_position_bias_table': dict(decay_mult=0.),
            'attn.scale': dict(decay_mult=0.),
        }),
    clip_grad=dict(max_norm=1., norm_type=2))
