"""The script that submits a job over logs to a cluster of Spark's, and a job to begin with. Pure.

A test submits the job to a standalone cluster; of YARN and Kubernetes only the arguments of `spark-submit` are tested.
docs/use/spark-clusters.md says more.
"""

from __future__ import annotations

import shlex

PLACES = ("standalone", "yarn", "kubernetes")
_HEAD = """#!/bin/sh
# Written by `rmqha generate spark {place}`: submits {job}. Made first, on a machine like the workers:
{made}
set -eu
exec spark-submit \\
"""
_PACK = (
    "#   python3 -m venv env && env/bin/pip install 'rmqha[spark,s3]' venv-pack\n"
    "#   env/bin/venv-pack -p env -o env.tar.gz"
)
_IMAGE = "#   an image of Spark 4.3 with Python 3.11 and `pip install 'rmqha[spark,s3]'`"
_COMMON = {
    "spark.executor.memoryOverhead": "1g",
    "spark.sql.session.timeZone": "UTC",
}
"""A task of ours holds up to 270 MiB beside the JVM's heap."""


def submit_script(place: str, job: str, stores: str, image: str) -> str:
    """A shell script; `stores` is the directory below which the stores lie on each worker, "" if they are elsewhere."""
    settings = dict(_COMMON)
    options: list[str] = []
    if place == "standalone":
        options = ["--master", "spark://${SPARK_MASTER:?host}:7077"]
        settings |= {"spark.pyspark.python": "python3"}
        made = "#   python3 with `pip install 'rmqha[spark,s3]'` on each worker"
    elif place == "yarn":
        options = ["--master", "yarn", "--deploy-mode", "cluster", "--archives", "env.tar.gz#env"]
        settings |= {
            "spark.pyspark.python": "./env/bin/python",
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": "./env/bin/python",
        }
        made = _PACK
    else:
        options = ["--master", "k8s://${KUBERNETES_API:?https://host:6443}", "--deploy-mode", "cluster"]
        settings |= {"spark.kubernetes.container.image": image, "spark.pyspark.python": "python3"}
        if stores:
            for role in ("driver", "executor"):
                volume = f"spark.kubernetes.{role}.volumes.persistentVolumeClaim.stores"
                settings |= {
                    f"{volume}.options.claimName": "stores",
                    f"{volume}.mount.path": stores,
                    f"{volume}.mount.readOnly": "true",
                }
        made = _IMAGE
    lines = [f"  {_pair(options[at : at + 2])} \\\n" for at in range(0, len(options), 2)]
    lines += [f"  --conf {shlex.quote(f'{name}={value}')} \\\n" for name, value in settings.items()]
    in_image = job if job.startswith("/") else f"/opt/jobs/{job}"
    path = f"local://{in_image}" if place == "kubernetes" and "://" not in job else job
    return _HEAD.format(place=place, job=job, made=made) + "".join(lines) + f'  {shlex.quote(path)} "$@"\n'


def _pair(words: list[str]) -> str:
    name, value = words
    return f'{name} "{value}"' if "$" in value else f"{name} {shlex.quote(value)}"


JOB = '''"""Written by `rmqha generate spark job`: messages and bytes of each topic and day, of stores that are named.

    spark-submit job.py /data/broker-*/store
"""

import sys

from pyspark.sql import SparkSession

import rmqha.spark

spark = rmqha.spark.register(SparkSession.builder.appName("rmqha job").getOrCreate())
answer = rmqha.spark.sql(
    spark,
    """
    select topic, date(storeTimestamp) day, count(*) messages, sum(storeSize) bytes
    from log group by all order by 1, 2
    """,
    sys.argv[1:],
)
answer.show(1000, truncate=False)
spark.stop()
'''
