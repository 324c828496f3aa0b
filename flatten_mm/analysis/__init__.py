"""What attention does: seen in any model, in numbers and in pictures."""
from .attention import attention_rows, equivalent_matrix, local_bias
from .figures import attention_figure, focus_figure, focused_map_figure, rank_figure
from .focus import FocusStats, dead_shares, focus_stats
from .observe import AttendCall, AttentionSite, attention_sites, collect, observe
from .rank import RankReport, effective_rank, rank_report

__all__ = [
    'AttendCall', 'AttentionSite', 'FocusStats', 'RankReport', 'attention_figure',
    'attention_rows', 'attention_sites', 'collect', 'dead_shares', 'effective_rank',
    'equivalent_matrix', 'focus_figure', 'focus_stats', 'focused_map_figure', 'local_bias',
    'observe', 'rank_figure', 'rank_report',
]
