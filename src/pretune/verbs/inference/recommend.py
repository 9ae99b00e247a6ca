"""The `recommend` verb: recommend items to users with a model of user histories, and evaluate such a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretune.runtime.output_paths import check_new_file
from pretune.verbs import options as opt
from pretune.verbs.option_modes import writes_cells
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import only, verb

SHOWN = 20  # rows of a table that are printed in the terminal


@verb(
    only("titles", where="without --evaluate", when=lambda o: not o.evaluate),
    only("safe_csv", where="with --out that ends in .csv or .tsv", when=writes_cells),
    only("num_negatives", "seed", where="with --evaluate", when=lambda o: o.evaluate),
    common=("histories", "top_k", "include_seen", "titles", "evaluate", "num_negatives", "out"),
    out=check_new_file,
)
def recommend(
    model: opt.Model,
    histories: opt.Paths,
    *,
    top_k: int = 10,
    include_seen: bool = False,
    titles: str | Path | opt.Table | None = None,
    evaluate: bool = False,
    num_negatives: int = 100,
    max_length: int = 128,
    user_column: opt.UserColumn = None,
    item_column: opt.ItemColumn = None,
    time_column: opt.TimeColumn = None,
    seed: int = 0,
    out: str | Path | None = None,
    safe_csv: opt.SafeCsv = False,
    ignore_mismatched: opt.IgnoreMismatched = False,
) -> ResultTable:
    """Recommend the most probable next items of users' histories, with a model pretrained with the objective item (BERT4Rec).

    With --evaluate, the last item of each history is held out and ranked, and hit rate, NDCG, and MRR are reported beside
    those of two trivial baselines: the most popular items, and the items that co-occur most often with the most recent
    one. Exclude these last items from training, as the objective item does by default.

    Parameters
    ----------
    histories
        Interactions of users with items, as `pretune histories` reads them: .csv, .tsv, .jsonl, or .parquet tables, or
        ratings of MovieLens (ratings.dat, u.data, ratings.csv); or a .txt file with one user per line.
    top_k
        Number of items to recommend to each user, or the cutoff of hit rate and NDCG.
    include_seen
        Recommend items of the user's own history, too.
    titles
        File with the titles of the items: movies.dat, u.item, movies.csv, or another table with an item and a title.
    evaluate
        Rank the last item of each history instead of recommending items.
    num_negatives
        Number of unseen items, sampled by popularity, among which the last item is ranked in addition to all items.
    max_length
        Maximum number of tokens of a history; older items are left out.
    seed
        Random seed of the sampled items.
    out
        Write the table to this .csv, .tsv, .jsonl, or .parquet file.

    Examples
    --------
    >>> recommend("runs/items", "ratings.dat", titles="movies.dat", top_k=1)[0]["title"]  # doctest: +SKIP
    'Toy Story (1995)'
    """
    from pretune.evaluation.leave_one_out import leave_one_out
    from pretune.inference.rank_items import encode_histories, load_recommender, recommend_items, report_unknown
    from pretune.runtime.progress import log_info
    from pretune.text.corpus.files import find_files
    from pretune.text.corpus.table_writer import check_table_suffix, table_writer
    from pretune.text.corpus.user_histories import FORMATS, TITLE_FORMATS, read_histories, read_titles
    from pretune.verbs.shared_inputs import as_path, as_path_list, open_reference

    if out is not None:
        check_table_suffix(out)
    files = find_files(as_path_list(histories), (*FORMATS, ".txt"))
    users = read_histories(files, user=user_column, item=item_column, time=time_column)
    named = read_titles(find_files(as_path(titles), TITLE_FORMATS)[0]) if titles is not None else {}
    loaded = load_recommender(open_reference(model), ignore_mismatched)
    encoded = encode_histories(loaded, list(users.values()))
    report_unknown(loaded, encoded)
    facts: dict[str, Any] = {}
    if evaluate:
        rows, facts = leave_one_out(loaded, encoded, top_k, include_seen, num_negatives, seed, max_length)
        if facts["seen_targets"] and not include_seen:
            log_info(
                f"{facts['seen_targets']} of {facts['users']} last items occur earlier in their history, too; they are ranked "
                "with the unseen items, although only --include-seen recommends them"
            )
    else:
        found = recommend_items(loaded, encoded, top_k, include_seen, max_length)
        rows = [
            {"user": user, "rank": rank, "item": best.item}
            | ({"title": named.get(best.item, "")} if titles is not None else {})
            | {"probability": best.probability}
            for user, items in zip(users, found, strict=True)
            for rank, best in enumerate(items, 1)
        ]
        untitled = {row["item"] for row in rows} - named.keys() if titles is not None else set()
        if untitled:
            log_info(f"{titles}: {len(untitled)} of the recommended items have no title, such as {min(untitled)}")
    if out is not None:
        with table_writer(out, safe=safe_csv) as write:
            write(rows)
        if not evaluate:
            return ResultTable("written", [{"file": str(out), "rows": len(rows)}], facts=facts)
    return ResultTable(
        "scores" if evaluate else "recommendations", rows, shown=None if evaluate else SHOWN, facts=facts
    )
