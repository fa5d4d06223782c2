"""What may stand in a script: hostile names stay values, options that cannot work are refused."""

import pytest

from heterps_hpc.cluster import SlurmOptions
from heterps_hpc.errors import UserError
from heterps_hpc.launch.slurm.options import limit_seconds, sbatch_word, slurm_time
from heterps_hpc.launch.slurm.script import job_name, render
from tests.launch.values import cpu_pool, gpu_pool, make_cluster, make_job, make_layout


def script_with(option: str) -> str:
    cluster = make_cluster(cpu_pool(slurm=SlurmOptions(options=(option,))))
    return render(make_layout(cluster, ("cpu", 2)), cluster, make_job(), "/runs/x")


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--array=0-3", "no arrays"),
        ("-a 0-3", "no arrays"),
        ("-a0-3", "no arrays"),
        ("--dependency=singleton", "waits for itself"),
        ("--dependency=afterok:12,singleton", "waits for itself"),
        ("-d singleton", "waits for itself"),
        ("-dsingleton", "waits for itself"),
        ("--nodes=7", "the layout decides"),
        ("-N7", "the layout decides"),
        ("--output=/dev/null", "the launcher sets it"),
        ("--account=x", "key of its own"),
        ("--multi-prog", "one srun"),
        ("exclusive", "not a long option"),
        ("-x c3", "not a long option"),
        ('--comment" --nodes=9', "not a long option"),
        ("--comment=a\n#SBATCH --nodes=9", "control characters"),
    ],
)
def test_option_that_cannot_work_is_refused_with_a_reason(option: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as refusal:
        script_with(option)
    assert "cpu" in str(refusal.value)


@pytest.mark.parametrize("option", ["--exclusive", "--dependency=afterok:12", "--nice=100"])
def test_other_options_pass(option: str) -> None:
    assert f"#SBATCH {option}\n" in script_with(option)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--partition=cpu", "--partition=cpu"),
        ("--constraint=a&b|[c*2]", "--constraint=a&b|[c*2]"),
        ("--comment=a b", '--comment="a b"'),
        ("--comment=a#b", '--comment="a#b"'),
        ('--comment="; rm', '--comment="\\"; rm"'),
        ("--comment=\\", '--comment="\\\\"'),
    ],
)
def test_sbatch_words(word: str, line: str) -> None:
    assert sbatch_word(word) == line


@pytest.mark.parametrize("partition", ["a\nb", "a\0b", "a\u2028b"])
def test_partition_that_would_break_out_of_its_line_is_refused(partition: str) -> None:
    cluster = make_cluster(cpu_pool(partition=partition))
    with pytest.raises(UserError, match="control characters"):
        render(make_layout(cluster, ("cpu", 1)), cluster, make_job(), "/runs/x")


@pytest.mark.parametrize("where", ["/runs/a\nb", "/runs/a\\b"])
def test_run_directory_that_slurm_cannot_write_is_refused(where: str) -> None:
    cluster = make_cluster(cpu_pool())
    with pytest.raises(UserError, match="run directory"):
        render(make_layout(cluster, ("cpu", 1)), cluster, make_job(), where)


def test_percent_in_run_directory_is_no_pattern() -> None:
    cluster = make_cluster(cpu_pool())
    script = render(make_layout(cluster, ("cpu", 1)), cluster, make_job(), "/runs/100%j")
    assert "--output=/runs/100%%j/logs/slurm-%j.log" in script


def test_names_of_variables_are_checked() -> None:
    cluster = make_cluster(cpu_pool(), environment={"A;rm -rf": "x"})
    with pytest.raises(UserError, match="not a variable's name"):
        render(make_layout(cluster, ("cpu", 1)), cluster, make_job(), "/runs/x")


def test_pool_without_partition_is_refused() -> None:
    cluster = make_cluster(cpu_pool(partition=None))
    with pytest.raises(UserError, match="names no Slurm partition"):
        render(make_layout(cluster, ("cpu", 1)), cluster, make_job(), "/runs/x")


@pytest.mark.parametrize(
    ("gres", "ranks", "expected"),
    [
        ("gpu:a100", 3, "--gres=gpu:a100:2"),
        ("gpu", 1, "--gres=gpu:1"),
        ("gpu:a100:4", 2, "--gres=gpu:a100:4"),
        ("gpu,craynetwork", 2, "--gres=gpu:2,craynetwork"),
    ],
)
def test_gres_counts_one_gpu_per_rank_of_a_node(gres: str, ranks: int, expected: str) -> None:
    cluster = make_cluster(gpu_pool(slurm=SlurmOptions(gres=gres)))
    script = render(make_layout(cluster, ("gpu", ranks)), cluster, make_job(), "/runs/x")
    assert f"#SBATCH {expected}\n" in script


def test_memory_is_the_share_of_the_ranks_on_a_node() -> None:
    cluster = make_cluster(cpu_pool(cores_per_node=4, memory_per_node_gb=4.0))
    full = render(make_layout(cluster, ("cpu", 8)), cluster, make_job(), "/runs/x")
    half = render(make_layout(cluster, ("cpu", 2)), cluster, make_job(), "/runs/x")
    assert "#SBATCH --mem=3814M\n" in full
    assert "#SBATCH --mem=1907M\n" in half


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ctr", "heterps-ctr"),
        ("$(reboot) `x`; 'a'", "heterps-reboot-x-a"),
        ("my hetjob", "heterps-my-het-job"),
        ("…", "heterps-run"),
        ("x" * 120, "heterps-" + "x" * 56),
    ],
)
def test_job_names(name: str, shown: str) -> None:
    assert job_name(name) == shown


def test_time_limits() -> None:
    assert slurm_time(90061) == "1-01:01:01"
    site = make_cluster(cpu_pool(), time_limit_minutes=30)
    assert limit_seconds(make_job(time_limit_minutes=60), site) == 1800
    assert limit_seconds(make_job(time_limit_minutes=10), site) == 600
    assert limit_seconds(make_job(time_limit_minutes=0.01), site) == 60
