"""``chunkpilot bag``: what can be done with bags; each sub-verb is a file of its own."""

HELP = 'record, look at, play, repair, cut, merge, check and export bags'
SUB_VERBS = {
    'record': '_bag_record',
    'info': '_bag_info',
    'play': '_bag_play',
    'check': '_bag_check',
    'repair': '_bag_repair',
    'cut': '_bag_cut',
    'merge': '_bag_merge',
    'export': 'export',
}
