"""Configuration of servers and of brokers; the base class is in `rmqha.model.config.base`.

Keys marked "own" in docs/operate/configuration.md do not exist in Apache RocketMQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

from rmqha.model.authorization.settings import initial_user, inner_user, request_codes
from rmqha.model.code import PERM_READ, PERM_WRITE
from rmqha.model.config.base import DEFAULT_HTTP_HOST, camel
from rmqha.model.config.base import Config as Config
from rmqha.model.config.base import bounded as bounded
from rmqha.model.config.base import key_field as key_field
from rmqha.model.config.base import knob as knob
from rmqha.model.config.base import parse_properties as parse_properties
from rmqha.model.config.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from rmqha.model.error import ConfigError
from rmqha.model.identity import HaMode, is_loopback, join_address, parse_address, split_addresses
from rmqha.model.quota import Limit, QuotaLimits, parse_overrides

if TYPE_CHECKING:
    from rmqha.model.authorization.users import AuthorizationRules, User

HA_SECURITY_MODES = ("auto", "open", "disabled", "permissive", "enforcing")
HISTORY_FILE = "rmqha.history"
CLOSED = ("auto", "enforcing")
"""Values with which a server with a secret accepts only peers that prove it."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Config):
    """Keys of every server. `listen_address` is the address to bind, loopback by default."""

    listen_address: str = "127.0.0.1"
    """Own. Address to bind; loopback by default."""
    log_file: str = ""
    """Own. File of the log; empty = standard error. Reopened on SIGHUP."""
    log_max_bytes: int = knob(16 * 1024 * 1024, 1, 1 << 40)
    """Own. Size at which the log rotates; three old files are kept."""
    audit_log_level: str = "auto"
    """Own. Requests in the audit log (docs/operate/security.md): off; changes: refused requests and those that change
    something; all: every request; auto: changes if requests must be signed, else off."""
    audit_log_file: str = ""
    """Own. File of the audit log; empty: audit.log beside logFile, else standard error. Reopened on SIGHUP."""
    audit_log_max_bytes: int = knob(16 * 1024 * 1024, 4096, 1 << 40)
    """Own. Size at which the audit log rotates."""
    audit_log_file_count: int = knob(10, 1, 1000)
    """Own. Old files of the audit log that are kept."""
    log_format: str = "text"
    """Own. text, or json: one object a line, with `cause_id`, which ties the lines of all nodes about one election
    (docs/operate/operating.md#logs)."""
    http_port: int = bounded(0, 0, 65535)
    """Own. Port of /healthz, /readyz, /role and /metrics (docs/operate/metrics.md), on a name server also of its page
    (docs/operate/web.md); 0: none is opened. A name server and the controller in it share one."""
    http_host: str = DEFAULT_HTTP_HOST
    """Own. Address to bind for httpPort."""
    max_frame_bytes: int = knob(16 * 1024 * 1024, 1, 2**31 - 1)
    """Own. A longer remoting frame closes the connection, as com.rocketmq.remoting.frameMaxLength does."""
    first_request_timeout_millis: int = knob(2_000, 100, 600_000)
    """Own. Time (ms) in which a new connection must send a valid request: one that the accounts allow, without accounts
    one whose code is known (docs/operate/security.md). A TLS handshake before it has the same time."""
    acl_enable: bool = False
    """Serve only signed requests of the accounts in aclFile."""
    acl_file: str = "conf/plain_acl.yml"
    """Own. Accounts and their permissions in RocketMQ's plain_acl.yml; read again when it changes."""
    credentials_file: str = ""
    """Own. File with accessKey and secretKey, as RocketMQ's tools.yml, with which this server signs its requests to
    others; an admin of their accounts. Only the owner may open it."""
    quota_account_requests_per_second: int = bounded(0, 0, (1 << 40) - 1, key="quota.account.requestsPerSecond")
    """Own. Requests per second of one account at most; more are answered SYSTEM_BUSY (docs/operate/security.md). 0: no
    bound."""
    quota_account_bytes_per_second: int = bounded(0, 0, (1 << 40) - 1, key="quota.account.bytesPerSecond")
    """Own. Bytes per second of one account's requests at most; 0: no bound."""
    quota_address_requests_per_second: int = bounded(0, 0, (1 << 40) - 1, key="quota.address.requestsPerSecond")
    """Own. Requests per second from one address at most; admins' do not count."""
    quota_address_bytes_per_second: int = bounded(0, 0, (1 << 40) - 1, key="quota.address.bytesPerSecond")
    """Own. Bytes per second of one address's requests at most; 0: no bound."""
    quota_overrides: str = key_field("quota.overrides", "")
    """Own. Other bounds for some accounts and addresses: `account:orders=500/1048576;address:10.0.0.7=0/0`, requests
    and bytes per second."""
    tls_server_mode: str = key_field("tls.server.mode", "permissive")
    """disabled, permissive (plain and TLS on one port; TLS needs a certificate) or enforcing (TLS only)."""
    tls_server_cert_path: str = key_field("tls.server.certPath", "")
    """Certificate chain of this server, PEM."""
    tls_server_key_path: str = key_field("tls.server.keyPath", "")
    """Private key of this server, PEM, not encrypted."""
    tls_server_trust_cert_path: str = key_field("tls.server.trustCertPath", "")
    """Issuers whose client certificates are accepted, PEM."""
    tls_server_need_client_auth: str = key_field("tls.server.need.client.auth", "none")
    """none, optional or require: whether clients show a certificate."""
    tls_enable: bool = key_field("tls.enable", False)
    """Use TLS towards other servers."""
    tls_client_auth_server: bool = key_field("tls.client.authServer", True)
    """Verify the certificates of other servers. RocketMQ: false."""
    tls_client_trust_cert_path: str = key_field("tls.client.trustCertPath", "")
    """Issuers whose server certificates are accepted, PEM; empty: the system's."""
    tls_client_cert_path: str = key_field("tls.client.certPath", "")
    """Certificate chain to show to other servers, PEM."""
    tls_client_key_path: str = key_field("tls.client.keyPath", "")
    """Private key of that certificate, PEM, not encrypted; empty: it is in the same file."""

    acl_signature: str = "any"
    """Own. Signatures that accounts may use: `any`, also Apache's form, which covers less; `admin`: accounts with all
    rights only rmqha's own form; `own`: all accounts (docs/operate/security.md)."""
    ha_secret_file: str = ""
    """Own. File (0600) with the secret that the servers of a cluster share: replicas prove it on their HA ports, and
    controllers and brokers sign their requests to each other. `rmqha up` and `rmqha generate` create one
    (docs/operate/security.md)."""

    def warnings(self) -> list[str]:
        """One sentence for each way in which other machines may reach the server without proof."""
        found = []
        if not is_loopback(self.listen_address):
            where = f"listenAddress = {self.listen_address}"
            if not self.requires_signatures:
                found.append(f"{where}: whoever reaches this server may ask it for anything; set aclEnable and aclFile")
            if not self.tls_server_cert_path or self.tls_server_mode == "disabled":
                found.append(f"{where}: messages and keys pass in the clear; set tls.server.certPath and keyPath")
            elif self.tls_server_mode == "permissive":
                found.append(f"{where}: plain connections are taken beside TLS; set tls.server.mode=enforcing")
        if self.http_port and not is_loopback(self.http_host):
            found.append(
                f"httpHost = {self.http_host}: whoever reaches port {self.http_port} reads this server's state;"
                " set httpHost to a loopback address or let only your monitoring in"
            )
        return found

    @property
    def requires_signatures(self) -> bool:
        """True if requests must be signed."""
        return self.acl_enable

    @property
    def data_directory(self) -> str:
        """Directory of the server's files, "" without any."""
        return ""

    @property
    def history_file(self) -> str:
        """File of the events that outlive the process (`rmqha history`), "" for none."""
        if self.log_file:
            return f"{self.log_file}.history"
        return f"{self.data_directory}/{HISTORY_FILE}" if self.data_directory else ""

    @property
    def quotas(self) -> QuotaLimits:
        account = Limit(self.quota_account_requests_per_second, self.quota_account_bytes_per_second)
        address = Limit(self.quota_address_requests_per_second, self.quota_address_bytes_per_second)
        return QuotaLimits(account, address, *parse_overrides(self.quota_overrides, "quota.overrides"))

    def check(self, source: str) -> None:
        super().check(source)
        parse_overrides(self.quota_overrides, source)
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"{source}: logFormat = {self.log_format!r} must be text or json")
        if self.audit_log_level not in ("auto", "off", "changes", "all"):
            raise ConfigError(f"{source}: auditLogLevel = {self.audit_log_level!r} is none of auto, off, changes, all")
        for name, known in (
            ("tls_server_mode", ("disabled", "permissive", "enforcing")),
            ("tls_server_need_client_auth", ("none", "optional", "require")),
            ("acl_signature", ("any", "admin", "own")),
        ):
            if getattr(self, name) not in known:
                key = type(self).__dataclass_fields__[name].metadata["key"]
                raise ConfigError(f"{source}: {key} = {getattr(self, name)} is none of {', '.join(known)}")


QUOTA_KEYS = frozenset(
    {
        "quota.account.requestsPerSecond",
        "quota.account.bytesPerSecond",
        "quota.address.requestsPerSecond",
        "quota.address.bytesPerSecond",
        "quota.overrides",
    }
)
"""Keys that change while a broker or a name server runs."""
_BROKER_LIVE_KEYS = """
    accessMessageInMemoryMaxRatio autoCreateMaxPerSecond autoCreateSubscriptionGroup autoCreateTopicEnable
    brokerPermission cleanFileForciblyEnable commitLogMaxBytes controllerAddr deleteFileBatchMax deleteWhen
    diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio enablePropertyFilter fileReservedTime
    flushIntervalCommitLog haTransferBytesPerSecond longPollingMaxMs maxClientCount maxGroupCount maxTopicCount
    maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
    maxTransferCountOnMessageInMemory namesrvAddr recallMessageEnable rejectTransactionMessage scrubBytesPerSecond
    slaveReadEnable timerMaxDelaySec timerWheelEnable transactionCheckInterval transactionCheckMax transactionTimeOut
    useServerSideResetOffset
"""


def accepts_unproven_peers(config: ServerConfig, ha_security: str) -> bool:
    """True if a controller with these keys accepts any peer as a broker."""
    return not config.acl_enable and (not config.ha_secret_file or ha_security not in CLOSED)


def unproven_peer_warnings(config: ServerConfig, ha_security: str) -> list[str]:
    """One sentence, in a list, if peers on other machines may register without proof."""
    if is_loopback(config.listen_address) or not accepts_unproven_peers(config, ha_security):
        return []
    state = f"haSecurity = {ha_security}" + ("" if config.ha_secret_file else " without haSecretFile")
    return [
        f"{state}: whoever reaches this controller may register replicas, alter the SyncStateSet and depose masters in"
        " a broker's name; set haSecretFile and haSecurity=auto on brokers and controllers, or aclEnable"
    ]


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(ServerConfig):
    """A replica of a broker group. Times are milliseconds, sizes bytes."""

    aliases: ClassVar[Mapping[str, str]] = {
        "bindAddress": "listenAddress",
        "haSlaveFallbehindMax": "haMaxGapNotInSync",
        "maxHaTransferByteInSecond": "haTransferBytesPerSecond",
    }
    live_keys: ClassVar[frozenset[str]] = frozenset(_BROKER_LIVE_KEYS.split()) | QUOTA_KEYS
    file_name: ClassVar[str] = "broker.conf"

    broker_cluster_name: str = "DefaultCluster"
    """Name of the cluster for clients and name servers."""
    broker_name: str = "broker-a"
    """Name of the group: all replicas of one CommitLog have the same."""
    broker_id: int = -1
    """Id to apply for first where there is a controller; -1 or 0: the next free one. It also numbers the node in
    sentences. In a static group 0 is the master; a slave needs a number of its own."""
    namesrv_addr: str = "127.0.0.1:9876"
    """Name servers, separated by `;`. A host name with several addresses is one name server for each, resolved again
    every updateNameServerAddrPeriod."""
    fetch_namesrv_addr_by_address_server: bool = knob(False)
    """Ask addressServer for the name servers if namesrvAddr is not given."""
    address_server: str = knob("jmenv.tbsite.net:8080/rocketmq/nsaddr")
    """Own. URL without scheme (`host:port/path`, HTTP) of the list for fetchNamesrvAddrByAddressServer; RocketMQ has it
    in system properties of its JVM (`rocketmq.namesrv.domain`)."""
    controller_addr: str = "127.0.0.1:9878"
    """Controllers, separated by `;`; the leader is found among them. Names are resolved as those of namesrvAddr."""
    enable_controller_mode: bool = True
    """false: a static group (docs/operate/static-groups.md). brokerRole and brokerId name the master."""
    ha_master_address: str = ""
    """HA address of a static group's master, for its slaves; empty: the address from the name servers."""
    listen_port: int = bounded(10911, 3, 65534)
    """Port for clients; listenPort − 2 (the fast port) serves the same requests."""
    ha_listen_port: int = 0
    """Port of the HA stream; 0: listenPort + 1."""
    broker_ip1: str = key_field("brokerIP1", "")
    """Address for clients and controllers; empty = listenAddress."""
    broker_ip2: str = key_field("brokerIP2", "")
    """Address of the HA stream for slaves; empty = brokerIP1."""
    store_path_root_dir: str = "store"
    """Directory of the store."""
    compressed_register: bool = knob(False)
    """Register topics with name servers in compressed form: for tables of many topics on slow links."""

    ha_mode: str = ""
    """Own. `ap` or `cp` (docs/start/guarantees.md); empty is AP with the plain keys as they stand."""
    ha_security: str = "auto"
    """Own. Peers that may connect to the HA port. `auto`: replicas that prove the secret of haSecretFile, by TLS too if
    that is set up; without that file any peer, so only on loopback. `open`: any peer that reaches it; groups with
    Apache's replicas need that. `enforcing`: replicas that come by TLS (with tls.enable) and prove the secret, or the
    account of credentialsFile; `permissive` takes all kinds and connects plainly. `disabled` is an older name of open.
    """
    authentication_enabled: bool = False
    """ACL 2.0: serve only requests that a user has signed (docs/operate/security.md#users-and-policies)."""
    authorization_enabled: bool = False
    """ACL 2.0: users have only the rights of their policies, except super users; needs authenticationEnabled."""
    init_authentication_user: str = field(default="", repr=False)
    """The first super user: `{"username": "…", "password": "…"}`."""
    inner_client_authentication_credentials: str = field(default="", repr=False)
    """The super user with which this broker signs its own requests: `{"accessKey": "…", "secretKey": "…"}`."""
    authentication_whitelist: str = knob("")
    """Request codes, separated by commas, that need no user."""
    authorization_whitelist: str = knob("")
    """Request codes that every user may ask for."""
    broker_role: str = "ASYNC_MASTER"
    """ASYNC_MASTER answers after its own append; SYNC_MASTER waits for inSyncReplicas. haMode=cp overrules it. SLAVE:
    only in a static group."""
    flush_disk_type: str = "ASYNC_FLUSH"
    """ASYNC_FLUSH syncs each flushIntervalCommitLog; SYNC_FLUSH before an acknowledgement, on slaves too."""
    total_replicas: int = bounded(1, 1, 9)
    """Replicas of the group; must be given with haMode=cp. The controller keeps the first number that it gets."""
    in_sync_replicas: int = 1
    """Replicas, the master included, that must have a record under SYNC_MASTER. AP only."""
    min_in_sync_replicas: int = 1
    """Size of the SyncStateSet below which sends are refused unwritten. haMode=cp uses the majority instead."""
    all_ack_in_sync_state_set: bool = False
    """Wait for the whole SyncStateSet, whatever brokerRole and inSyncReplicas say. haMode=cp always does."""
    enable_auto_in_sync_replicas: bool = False
    """Lower inSyncReplicas while fewer replicas of the set are alive and close enough, never below minInSyncReplicas.
    Only under SYNC_MASTER; AP only."""
    async_learner: bool = False
    """Make this replica a learner: never in the SyncStateSet, never elected and not counted by totalReplicas
    (docs/operate/sites.md)."""
    broker_election_priority: int = bounded(2147483647, -(2**31), 2**31 - 1)
    """Priority in elections among equal replicas: the lower number is elected."""
    broker_zone: str = ""
    """Own. Rack or zone of this replica; the controllers' electionZones may prefer it."""
    disk_probe_interval_millis: int = knob(1000, 0, 3_600_000)
    """Own. Pause (ms) between two small durable writes that test the disk; 0: no tests."""
    disk_probe_timeout_millis: int = knob(5000, 100, 600_000)
    """Own. Time (ms) without an end of such a write after which the disk counts as failed: the mastership moves
    away."""

    ha_max_time_slave_not_catchup: int = knob(15000, 1, 2**31 - 1, drawn=(3000, 15_000))
    """Time (ms) for which a slave may lag behind the master before it leaves the set."""
    ha_max_gap_not_in_sync: int = knob(256 * 1024 * 1024, 0, 2**63 - 1, drawn=(64 * 1024, 256 * 1024 * 1024))
    """Lag (bytes) at which a slave leaves the set; in a static group a SYNC_MASTER does not wait for it."""
    ha_send_heartbeat_interval: int = knob(5000, 1, 2**31 - 1, drawn=(200, 1000, 5000))
    """Silence (ms) on the HA stream after which the master sends a heartbeat."""
    ha_housekeeping_interval: int = knob(20000, 1, 2**31 - 1, drawn=(6000, 20_000))
    """Silence (ms) on the HA stream after which either side closes it."""
    ha_transfer_batch_size: int = knob(1024 * 1024, 1024, 1024 * 1024, drawn=(1024, 4096, 64 * 1024, 1024 * 1024))
    """Log bytes of one transfer at most, up to 1 MiB. RocketMQ: 32 KiB."""
    ha_transfer_bytes_per_second: int = bounded(0, 0, 2**63 - 1)
    """Own. Log bytes per second at most for each slave that copies and is not in the SyncStateSet; 0: no limit.
    RocketMQ's maxHaTransferByteInSecond is an alias."""
    scrub_bytes_per_second: int = knob(2 * 1024 * 1024, 0, 2**31 - 1, drawn=(0, 20_000, 2 * 1024 * 1024))
    """Own. Log bytes per second that are read again and checked, so that damage is found and repaired; 0: none."""
    ha_ack_stall_bound_ms: int = knob(2000, 1, 2**31 - 1, drawn=(300, 1000, 2000))
    """Own. Time (ms) without acks after which a slave is removed from the set; below slaveTimeout."""
    slave_timeout: int = knob(3000, 1, 2**31 - 1, drawn=(2500, 3000))
    """Time (ms) for which a send waits for replicas before FLUSH_SLAVE_TIMEOUT."""
    wait_time_mills_in_send_queue: int = knob(1000, 0, 600_000)
    """Time (ms) after which a send that could not be read yet is refused with SYSTEM_BUSY, since its client has given
    up; 0: never. RocketMQ: 200."""
    forward_sends_millis: int = knob(35_000, 0, 600_000)
    """Own. Time (ms) after a start or a change of the master for which a slave forwards sends to the master, until
    clients have asked for the route again (Java: each 30 s). 0: it refuses them with code 14 from the begin of a
    directed switch."""
    sync_flush_timeout: int = knob(5000, 1, 2**31 - 1, drawn=(2000, 3000))
    """Time (ms) for which a send waits for the disk before FLUSH_DISK_TIMEOUT."""
    flush_interval_commit_log: int = knob(500, 1, 600_000, drawn=(10, 500, 1500))
    """Period (ms) of syncs under ASYNC_FLUSH."""
    transient_store_pool_enable: bool = knob(False)
    """Collect messages without an answer (oneway, WAIT=false) in memory and write them to the log in one call; a kill
    loses those, but never a send that waits."""
    transient_store_pool_size: int = knob(5, 1, 1024, drawn=(1, 5))
    """Multiple of commitCommitLogLeastPages that may be collected while the requests of one read are handled. RocketMQ:
    the number of buffers of one log file each."""
    commit_commit_log_least_pages: int = knob(4, 1, 1024, drawn=(1, 4))
    """Pages of 4 KiB that are written at once, without waiting for commitIntervalCommitLog."""
    commit_interval_commit_log: int = knob(200, 1, 60_000, drawn=(20, 200, 1000))
    """Time (ms) for which a message may be collected."""

    mapped_file_size_commit_log: int = bounded(1024 * 1024 * 1024, 64 * 1024, 2**31 - 1)
    """Size of a CommitLog file; the same on all replicas of a group."""
    mapped_file_size_consume_queue: int = knob(300000 * 20, 20, 2**31 - 1, drawn=(20 * 50, 20 * 300))
    """Size of a ConsumeQueue file; a multiple of 20."""
    mapper_file_size_batch_consume_queue: int = knob(300000 * 46, 46, 2**31 - 1)
    """Size of a file of a BatchConsumeQueue (topics with queue.type=BatchCQ); a multiple of 46."""
    message_index_enable: bool = knob(True)
    """Keep an index of keys, for queries by key, unique key and tags. false: no index, and queries fail with a
    reason."""
    max_hash_slot_num: int = knob(5000000, 1, 2**28, drawn=(16, 64))
    """Hash slots of an index file, 4 bytes each. After a change the index is rebuilt."""
    max_index_num: int = knob(20000000, 2, (2**31 - 41) // 20, drawn=(64, 256))
    """Entries of an index file, 20 bytes each; a message has one for each of its keys, its unique key and its tags."""
    max_message_size: int = 4 * 1024 * 1024
    """Largest body (bytes); without this key half of mappedFileSizeCommitLog, if that is less."""
    enabled_append_prop_crc: bool = knob(False, key="enabledAppendPropCRC", drawn=(False, True))
    """Add a checksum of the whole record to each, as its last property (20 bytes). Without it only size, position and
    body are protected against damage."""
    file_reserved_time: int = bounded(72, 0, 10**6)
    """Hours for which a log file is kept after its newest record. Then it is removed in the hours of deleteWhen, or at
    once while the disk is fuller than diskMaxUsedSpaceRatio."""
    delete_when: str = "04"
    """Hours of the day, local time, separated by `;`, in which expired log files are removed."""
    commit_log_max_bytes: int = 0
    """Own. Size of the whole log above which its oldest files are removed, expired or not; 0: no limit. At least two
    files are kept."""
    disk_max_used_space_ratio: int = bounded(75, 1, 100)
    """Percent of the disk in use above which expired log files are removed at any hour."""
    disk_space_clean_forcibly_ratio: int = knob(85, 1, 100)
    """Percent of the disk in use above which the oldest log files are removed even if they are not expired, until the
    use is below it; diskSpaceWarningLevelRatio, if that is lower."""
    disk_space_warning_level_ratio: int = knob(90, 1, 100)
    """Percent of the disk in use above which sends are refused and forced cleaning does not wait for slaves."""
    clean_file_forcibly_enable: bool = knob(True, drawn=(False, True))
    """Remove log files that are not expired when the disk is full."""
    delete_file_batch_max: int = knob(10, 1, 10**6, drawn=(1, 10))
    """Log files that one check removes at most."""
    clean_resource_interval: int = knob(10000, 10, 10**9)
    """Period (ms) of checks of the disk and the age of files."""
    delete_commit_log_files_interval: int = knob(100, 0, 10**9, drawn=(0, 100))
    """Pause (ms) between two removed log files."""
    destroy_maped_file_interval_forcibly: int = knob(120000, 0, 10**9, drawn=(1000, 120_000))
    """Time (ms) for which a removed log file may stay on the disk, under another name, while a reader uses it."""
    redelete_hanged_file_interval: int = knob(120000, 0, 10**9, drawn=(1000, 120_000))
    """Time (ms) after a failed removal of a log file before the next attempt."""
    broker_permission: int = knob(6, 0, 7)
    """Rights that this broker grants to all clients, the sum of 2 to send and 4 to read: routes from name servers have
    no more. Without 4 reads are refused. Without 2 sends to ordered topics and messages sent back are refused; other
    sends of clients with an older route are still taken, as in RocketMQ, so that a group is emptied without errors. It
    is for this replica: set it on all of a group (`rmqha config set GROUP`)."""
    auto_create_topic_enable: bool = True
    """Create an unknown topic at its first send."""
    default_topic_queue_nums: int = knob(8, 1, 2**31 - 1, drawn=(4, 8))
    """Queues of a topic that is created so at most."""
    auto_create_subscription_group: bool = True
    """Create an unknown consumer group at its first heartbeat or pull."""
    auto_create_max_per_second: int = knob(20, 1, 10_000_000)
    """Own. Topics per second that first sends create at most; more are answered SYSTEM_BUSY. A topic costs files on
    each replica, so a flood of names would end the mastership. Groups: five times as many."""
    max_topic_count: int = knob(100_000, 1, 10_000_000)
    """Own. Number of topics at most, by operators and first sends. Deleted ones do not count, nor those of retries and
    dead letters: there are as many as a name server takes of one broker besides."""
    max_group_count: int = knob(100_000, 1, 10_000_000)
    """Own. Number of consumer groups at most."""
    max_client_count: int = knob(100_000, 1, 10_000_000)
    """Own. Memberships of connected clients in producer and consumer groups, together; a heartbeat that would exceed it
    is answered SYSTEM_BUSY. One account that is no admin has half of them at most."""
    enable_property_filter: bool = False
    """Let consumers choose messages by SQL92 expressions over their properties."""
    use_server_side_reset_offset: bool = knob(True)
    """Keep a reset of consumer offsets in the broker and tell it with each pull until a member goes on there; false:
    only connected members of the group are told, at once (request 220)."""
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    """Delay of each level, level 1 first; the same on all replicas of a group. Messages of removed levels are delivered
    at their time."""
    mapped_file_size_timer_log: int = knob(100 * 1024 * 1024, 1024, 2**31 - 1)
    """Size of each file of the timer log, which a clean stop leaves for RocketMQ's brokers."""
    timer_wheel_enable: bool = knob(True)
    """Take messages with a delivery time (TIMER_DELAY_MS and the like). Waiting messages are delivered in any case."""
    timer_precision_ms: int = knob(1000, 10, 60_000, drawn=(100, 1000))
    """Width (ms) of a slot of RocketMQ's wheel: 100, 200, 500 or 1000; of another value the next lower one (100 at
    least), as in RocketMQ. rmqha delivers each message at its own time, whatever the width. Apache's brokers use
    theirs, so it should be the same on all replicas of a group. A change while messages wait is reported (the event
    timer_precision_changed, `doctor`, `fsck`; docs/use/compatibility.md)."""
    timer_max_delay_sec: int = knob(259_200, 1, 2**31 - 1)
    """Longest delay (s); a message with a later time is refused."""
    recall_message_enable: bool = knob(False)
    """Allow the recall of timer messages by their handles (request 370)."""
    reject_transaction_message: bool = knob(False)
    """Refuse transactional messages (16). Pending transactions go on."""
    transaction_time_out: int = knob(6000, 0, 2**31 - 1, drawn=(200, 600, 1500))
    """Time (ms) after its birth for which a transactional message waits before its producer is asked how the
    transaction ended; a message may say CHECK_IMMUNITY_TIME_IN_SECONDS for itself."""
    transaction_check_interval: int = knob(30_000, 10, 2**31 - 1, drawn=(200, 500, 1000))
    """Pause between two rounds of questions to producers."""
    transaction_check_max: int = knob(15, 1, 2**31 - 1, drawn=(4, 8))
    """Checks after which a message goes to TRANS_CHECK_MAX_TIME_TOPIC, as one older than fileReservedTime does."""
    metadata_sync: str = ""
    """Own. `strict`: a change of a topic or a group is answered when every rmqha member of the SyncStateSet has it on
    its disk; `periodic`: at once, slaves follow within a second. Empty: strict under haMode=cp."""
    offset_sync: str = "periodic"
    """Own. `strict`: the same for each commit of a consumer's offset, at the cost of a write of the table on each
    slave."""
    metadata_sync_timeout_ms: int = knob(3000, 100, 60_000, drawn=(500, 3000))
    """Own. Time (ms) for which a strict change waits for a silent member before it is answered with an error."""
    slave_read_enable: bool = True
    """Let slaves serve pulls, up to their confirm offset: of consumers without a master, and of those that the master
    sends because their messages are no longer in its memory (accessMessageInMemoryMaxRatio). RocketMQ: false."""
    access_message_in_memory_max_ratio: int = knob(40, 0, 100)
    """Percent of the machine's memory; a consumer with a larger lag (bytes) is sent to a slave."""
    max_transfer_count_on_message_in_memory: int = knob(32, 1, 2**31 - 1)
    """Messages of one pull at most, however many it asks for (never more than 1,024). For messages older than
    accessMessageInMemoryMaxRatio maxTransferCountOnMessageInDisk applies."""
    max_transfer_bytes_on_message_in_memory: int = knob(256 * 1024, 1, 2**31 - 1)
    """Bytes of one pull at most (never more than 4 MiB); a larger message is given alone."""
    max_transfer_count_on_message_in_disk: int = knob(8, 1, 2**31 - 1)
    """Messages of one pull at most, for older messages."""
    max_transfer_bytes_on_message_in_disk: int = knob(64 * 1024, 1, 2**31 - 1)
    """Bytes of one pull at most, for older messages."""
    long_polling_max_ms: int = knob(30000, 0, 600_000)
    """Own bound (ms) on a pull's suspendTimeoutMillis."""

    controller_heartbeat_interval_millis: int = knob(500, 1, 2**31 - 1, drawn=(100, 300, 500))
    """Own. Period (ms) of heartbeats to the controller."""
    controller_heart_beat_timeout_mills: int = knob(2000, 1, 2**31 - 1, drawn=(1500, 2000, 3000))
    """Time (ms) after the last heartbeat for which the controller takes this broker for alive (ruling 17)."""
    broker_heartbeat_interval: int = knob(1000, 1, 2**31 - 1)
    """Period (ms) of lite heartbeats to the name servers."""
    update_name_server_addr_period: int = knob(10_000, 100, 2**31 - 1)
    """Period (ms) after which names in namesrvAddr and controllerAddr, and the list of addressServer, are resolved
    again. RocketMQ: 120000."""
    register_name_server_period: int = knob(30000, 1, 2**31 - 1)
    """Period (ms) of full registrations; role and topic changes register at once."""
    region_id: str = knob("DefaultRegion")
    """Value of MSG_REGION."""
    trace_on: bool = knob(True)
    """Value of TRACE_ON: with false tracing clients leave out this broker's answers."""
    trace_topic_enable: bool = knob(False)
    """Create the topic of message traces, RMQ_SYS_TRACE_TOPIC, at the start: for autoCreateTopicEnable=false."""

    @property
    def delete_hours(self) -> tuple[int, ...]:
        """deleteWhen as hours from 0 to 23."""
        return tuple(int(hour) for hour in self.delete_when.split(";") if hour.strip())

    @cached_property
    def mode(self) -> HaMode:
        return HaMode.CP if self.ha_mode == "cp" else HaMode.AP

    @property
    def data_directory(self) -> str:
        return self.store_path_root_dir

    @property
    def static_broker_id(self) -> int:
        """Id in a static group: the master's is 0 whether it is given or not."""
        return max(0, self.broker_id)

    @property
    def grants_reads(self) -> bool:
        return bool(self.broker_permission & PERM_READ)

    @property
    def grants_sends(self) -> bool:
        return bool(self.broker_permission & PERM_WRITE)

    @property
    def slave_reads(self) -> bool:
        """True if slaves serve pulls: those of a static group always do, since nobody else could without the master."""
        return self.slave_read_enable or not self.enable_controller_mode

    @cached_property
    def metadata_strict(self) -> bool:
        return self.metadata_sync == "strict" or (self.metadata_sync == "" and self.mode is HaMode.CP)

    @cached_property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def majority(self) -> int:
        """Smallest confirmed set that may acknowledge in CP (ruling 1): 1→1, 2→2, 3→2, 5→3."""
        return self.total_replicas // 2 + 1

    @property
    def own_ip(self) -> str:
        """Name of this broker in the remarks of refusals."""
        return self.broker_ip1 or self.listen_address

    @property
    def address(self) -> str:
        return join_address(self.own_ip, self.listen_port)

    @property
    def ha_port(self) -> int:
        return self.ha_listen_port or self.listen_port + 1

    @property
    def ha_address(self) -> str:
        return join_address(self.broker_ip2 or self.broker_ip1 or self.listen_address, self.ha_port)

    @cached_property
    def initial_user(self) -> User | None:
        return initial_user(self.init_authentication_user, "")

    @cached_property
    def inner_user(self) -> User | None:
        return inner_user(self.inner_client_authentication_credentials, "")

    @property
    def named_users(self) -> tuple[User | None, User | None]:
        """The initial user and the inner one."""
        return self.initial_user, self.inner_user

    @property
    def requires_signatures(self) -> bool:
        return self.acl_enable or self.authentication_enabled

    @property
    def authorization_rules(self) -> AuthorizationRules:
        from rmqha.model.authorization.users import AuthorizationRules

        return AuthorizationRules(
            self.authorization_enabled,
            self.broker_cluster_name,
            request_codes(self.authentication_whitelist, ""),
            request_codes(self.authorization_whitelist, ""),
        )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], source: str) -> Self:
        if "maxMessageSize" not in properties:
            file_bytes = properties.get("mappedFileSizeCommitLog", "")
            if file_bytes.isascii() and file_bytes.isdigit():
                fitting_bytes = min(cls.max_message_size, int(file_bytes) // 2)
                properties = {**properties, "maxMessageSize": str(fitting_bytes)}
        config = super().from_properties(cls._with_fitting_ratios(properties), source)
        if config.mode is HaMode.CP and "totalReplicas" not in properties:
            raise ConfigError(f"{source}: haMode=cp needs totalReplicas; set it to the number of the group's replicas")
        return config

    @property
    def forcible_ratio(self) -> int:
        """Percent of the disk in use above which files are removed that are not expired."""
        return min(self.disk_space_clean_forcibly_ratio, self.disk_space_warning_level_ratio)

    @classmethod
    def _with_fitting_ratios(cls, properties: Mapping[str, str]) -> Mapping[str, str]:
        """Replace missing ratios of the disk by those that depend on given ones."""
        found, lowest = dict(properties), 0
        for name in ("disk_max_used_space_ratio", "disk_space_clean_forcibly_ratio", "disk_space_warning_level_ratio"):
            key, default = camel(name), getattr(cls, name)
            given = found.get(key)
            if given is None and lowest > default:
                found[key] = str(lowest)
            elif given is not None and given.isascii() and given.isdigit():
                lowest = int(given)
        return found

    def check(self, source: str) -> None:
        super().check(source)
        if self.ha_mode not in ("", "ap", "cp"):
            raise ConfigError(f"{source}: haMode = {self.ha_mode!r} must be ap or cp")
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise ConfigError(f"{source}: flushDiskType = {self.flush_disk_type!r} must be ASYNC_FLUSH or SYNC_FLUSH")
        if self.broker_role not in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"):
            raise ConfigError(f"{source}: brokerRole = {self.broker_role!r} must be ASYNC_MASTER, SYNC_MASTER or SLAVE")
        if not self.enable_controller_mode:
            self._check_static(source)
        self._check_addresses(source)
        self._check_ha_security(source)
        self._check_users(source)
        for key, value in (("metadataSync", self.metadata_sync or "strict"), ("offsetSync", self.offset_sync)):
            if value not in ("strict", "periodic"):
                raise ConfigError(f"{source}: {key} = {value!r} must be strict or periodic")
        self.require_range(source, "in_sync_replicas", 1, self.total_replicas if self.enable_controller_mode else 9)
        self.require_range(source, "min_in_sync_replicas", 1, self.total_replicas)
        self.require_range(source, "max_index_num", 2, (2**31 - 41 - 4 * self.max_hash_slot_num) // 20)
        self.require_range(source, "max_message_size", 1, self.mapped_file_size_commit_log // 2)
        if self.mapped_file_size_consume_queue % 20:
            raise ConfigError(f"{source}: mappedFileSizeConsumeQueue must be a multiple of 20, the size of one entry")
        if self.mapper_file_size_batch_consume_queue % 46:
            raise ConfigError(
                f"{source}: mapperFileSizeBatchConsumeQueue must be a multiple of 46, the size of one entry"
            )
        try:
            parse_delay_levels(self.message_delay_level)
        except ValueError as error:
            raise ConfigError(f"{source}: messageDelayLevel: {error}") from None
        if self.ha_ack_stall_bound_ms >= self.slave_timeout:
            raise ConfigError(
                f"{source}: haAckStallBoundMs = {self.ha_ack_stall_bound_ms} must be below slaveTimeout, "
                f"{self.slave_timeout}: waiting sends would time out before the stalled slave is left out"
            )
        self._check_retention(source)
        if self.in_sync_replicas < self.min_in_sync_replicas:
            raise ConfigError(f"{source}: inSyncReplicas must not be below minInSyncReplicas")
        if self.mode is HaMode.CP and (self.enable_auto_in_sync_replicas or self.in_sync_replicas != 1):
            key = "enableAutoInSyncReplicas" if self.enable_auto_in_sync_replicas else "inSyncReplicas"
            raise ConfigError(f"{source}: {key} contradicts haMode=cp, which waits for the whole set; remove one")

    @property
    def asks_address_server(self) -> bool:
        return self.fetch_namesrv_addr_by_address_server and self.namesrv_addr == type(self).namesrv_addr

    def _check_addresses(self, source: str) -> None:
        for key, text in (("namesrvAddr", self.namesrv_addr), ("controllerAddr", self.controller_addr)):
            try:
                split_addresses(text)
            except ValueError as error:
                raise ConfigError(f"{source}: {key} {error}") from None
        host, slash, _ = self.address_server.partition("/")
        try:
            if not slash:
                raise ValueError(f"{self.address_server!r} has no path")
            parse_address(host)
        except ValueError as error:
            raise ConfigError(f"{source}: addressServer: {error}; write host:port/path") from None

    def _check_ha_security(self, source: str) -> None:
        """Raise ConfigError for keys with which peers need no proof by mistake, or with which a replica could not be
        slave as well as master."""
        mode = self.ha_security
        if mode not in HA_SECURITY_MODES:
            raise ConfigError(f"{source}: haSecurity = {mode!r} must be auto, open, permissive or enforcing")
        if mode == "auto" and not self.ha_secret_file and not is_loopback(self.listen_address):
            raise ConfigError(
                f"{source}: listenAddress = {self.listen_address} opens the HA port to others: set haSecretFile to a"
                " file that all replicas share (`rmqha generate secret`), or haSecurity=open if Apache's brokers copy"
                " from this one; whoever reaches it may then copy the log and forge acknowledgements"
            )
        if mode in ("auto", "open", "disabled"):
            return
        has_certificate = bool(self.tls_server_cert_path) and self.tls_server_mode != "disabled"
        if not has_certificate and not self.requires_signatures and not self.ha_secret_file:
            raise ConfigError(
                f"{source}: haSecurity = {mode} needs haSecretFile, tls.server.certPath or aclEnable=true"
            )
        for ours, theirs, is_missing in (
            ("tls.server.certPath", "tls.enable=true", has_certificate and not self.tls_enable),
            ("tls.enable", "tls.server.certPath", self.tls_enable and not has_certificate),
            ("aclEnable", "credentialsFile", self._greets_by_account and not self._signs),
            ("credentialsFile", "aclEnable=true", self._is_credentials_alone),
        ):
            if mode == "enforcing" and is_missing:
                raise ConfigError(
                    f"{source}: haSecurity = enforcing with {ours} needs {theirs} too: each replica is at times a"
                    " slave and at times the master"
                )

    def _check_users(self, source: str) -> None:
        initial_user(self.init_authentication_user, source)
        inner = inner_user(self.inner_client_authentication_credentials, source)
        request_codes(self.authentication_whitelist, f"{source}: authenticationWhitelist")
        request_codes(self.authorization_whitelist, f"{source}: authorizationWhitelist")
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(f"{source}: authorizationEnabled needs authenticationEnabled: anyone can claim a name")
        if not self.authentication_enabled:
            return
        if self.acl_enable:
            raise ConfigError(f"{source}: aclEnable and authenticationEnabled are two sets of accounts; choose one")
        if inner is not None and self.credentials_file:
            raise ConfigError(f"{source}: credentialsFile and innerClientAuthenticationCredentials; choose one")

    @property
    def _is_credentials_alone(self) -> bool:
        return bool(self.credentials_file) and not self.requires_signatures and not self.ha_secret_file

    @property
    def _signs(self) -> bool:
        users = self.inner_user or self.initial_user if self.authentication_enabled else None
        return bool(self.credentials_file) or users is not None

    @property
    def _greets_by_account(self) -> bool:
        return self.requires_signatures and not self.ha_secret_file

    @property
    def _has_replicas(self) -> bool:
        """True if other replicas copy the log, as far as the keys show."""
        if self.enable_controller_mode:
            return self.total_replicas > 1
        return self.broker_role == "SLAVE" or bool(self.ha_master_address)

    def warnings(self) -> list[str]:
        found = super().warnings()
        beyond = not is_loopback(self.listen_address)
        if self.ha_security in ("open", "disabled", "permissive") and beyond:
            found.append(
                f"haSecurity = {self.ha_security}: whoever reaches port {self.ha_port} may copy the log, and who comes"
                " from a replica's host may acknowledge in its name what it does not have, so that messages are lost;"
                " set haSecretFile and haSecurity=auto, or give the HA port a network of its own"
            )
        elif self.ha_security == "auto" and not self.ha_secret_file and self._has_replicas:
            found.append(
                f"haSecurity = auto without haSecretFile: whoever on this machine reaches port {self.ha_port} may copy"
                " the log and acknowledge in a replica's name what it does not have; set haSecretFile"
                " (`rmqha generate secret FILE` makes one)"
            )
        elif beyond and not (self.tls_enable and self.tls_server_cert_path):
            found.append(f"port {self.ha_port}: the log passes in the clear between replicas; set tls.enable and tls.*")
        return found

    def _check_static(self, source: str) -> None:
        """Check roles, and keys that a group without a controller cannot have."""
        is_slave = self.broker_role == "SLAVE"
        if is_slave and self.broker_id <= 0:
            raise ConfigError(f"{source}: brokerId = {self.broker_id} of a static group's SLAVE must be 1 or more")
        if not is_slave and self.broker_id > 0:
            raise ConfigError(
                f"{source}: brokerId = {self.broker_id} of a static group's {self.broker_role} must be 0; a slave needs"
                " brokerRole=SLAVE"
            )
        if self.ha_master_address:
            try:
                parse_address(self.ha_master_address)
            except ValueError as error:
                raise ConfigError(f"{source}: haMasterAddress: {error}") from None
        for key, wrong in (
            ("haMode=cp", self.mode is HaMode.CP),
            ("allAckInSyncStateSet", self.all_ack_in_sync_state_set),
            ("enableAutoInSyncReplicas", self.enable_auto_in_sync_replicas),
            ("asyncLearner", self.async_learner),
        ):
            if wrong:
                raise ConfigError(f"{source}: {key} needs a controller, so not enableControllerMode=false; remove one")

    def _check_retention(self, source: str) -> None:
        hours = [hour.strip() for hour in self.delete_when.split(";") if hour.strip()]
        if not all(hour.isascii() and hour.isdigit() and len(hour) <= 2 and int(hour) <= 23 for hour in hours):
            raise ConfigError(f"{source}: deleteWhen = {self.delete_when!r} must be hours from 00 to 23, as in 04;16")
        if self.commit_log_max_bytes and self.commit_log_max_bytes < 2 * self.mapped_file_size_commit_log:
            raise ConfigError(
                f"{source}: commitLogMaxBytes = {self.commit_log_max_bytes} must be 0 or at least two files of"
                f" mappedFileSizeCommitLog = {self.mapped_file_size_commit_log}: the file in use always stays"
            )
