/* A broker group of three replicas and its controllers: SyncStateSet, proposal, eligibility, epochs, resize, acknowledgement.

   One action below is one atomic step of one party. What a network may do is in the choice of the next action: a
   message that is late is an action that comes later, one that is lost never comes, a partition is a set of actions
   that do not come for a while, and so is a process that is stopped. README.md says where each action stands in the code.

   Rules are switches: -DCP or -DAP chooses the mode; each -DBUG_ puts an old or tempting rule in place of the
   right one, and must be found. Sets of replicas are bit masks; replicas are counted from 0 here and from 1 in traces. */

#define N 3
#ifndef RECORDS
#define RECORDS 2      /* appended in all */
#endif
#ifndef EPOCHS
#define EPOCHS 3       /* elections, the first included */
#endif
#ifndef SETS
#define SETS 4         /* set epochs */
#endif
#ifndef RESTARTS
#define RESTARTS 1
#endif
#ifndef LOSSES
#define LOSSES 1       /* losses of power; at most one replica at a time suffers from one */
#endif
#ifndef RESIZES
#define RESIZES 0
#endif
#ifndef TOTAL
#define TOTAL 3        /* totalReplicas at first; a resize makes 5 of 3 and 3 of 5 */
#endif
#define REQUESTS 2     /* alterations of the set on their way at once */
#define ALL 7

#define BIT(r) (1 << (r))
#define IN(set, r) ((((set) >> (r)) & 1) == 1)
#define SIZE(set) (((set) & 1) + (((set) >> 1) & 1) + (((set) >> 2) & 1))
#define LOG(r, k) log[(r) * RECORDS + (k)]
#define ACKED(m, r) acked[(m) * N + (r)]
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define HOLDS(property, condition) \
  if :: (condition) -> skip :: else -> printf("VIOLATED: "); printf(property); printf("\n"); assert(false) fi

#ifdef CP
#define IS_CP true
#else
#define IS_CP false
#endif

/* --- a replica ---------------------------------------------------------------------------------------------------- */
byte log[N * RECORDS];  /* records by their number; two replicas with one number at one place agree there */
byte end[N];            /* where its log ends */
byte confirm[N];        /* confirm offset */
byte accepted[N];       /* highest master epoch it has accepted: durable before it acts on it */
byte unclean = 0;       /* replicas that lost power and have not caught up since */
byte goal[N];           /* of an unclean one: its master's end at the handshake */
byte follows[N];        /* 1 + the master to which it is connected */

/* as master */
byte leads[N];          /* the epoch, 0 for a slave */
byte confirmed[N];      /* the set that the controllers have confirmed, as it knows it */
byte set_epoch[N];
byte in_force[N];       /* the union of what is or may be in force */
byte proposed[N];       /* the change that waits for its answer */
byte unknown = 0;       /* masters that have lost an answer */
byte blind = 0;         /* masters that have been restarted within their epoch and have settled nothing since */
byte inherited[N];      /* where the log ended when this mastership, or this life of it, began */
byte acked[N * N];      /* 1 + what a slave has acknowledged to a master; 0: nothing yet */
byte total[N];          /* totalReplicas as it knows it */

/* --- the controllers: one atomic register, as Raft makes it ------------------------------------------------------- */
byte c_master = 1;      /* 1 + id, 0 for none */
byte c_epoch = 1;
byte c_set = ALL;
byte c_set_epoch = 1;
byte c_eligible = 0;
byte c_total = TOTAL;
byte c_next_total = 0;

/* what elections have told, and any replica may hear at any time */
byte winner[EPOCHS + 1];
byte won_at[EPOCHS + 1];  /* the set epoch of that election */

/* requests 1001 on their way; those that a fence would refuse are taken out at once */
byte q_from[REQUESTS];    /* 1 + the master, 0 for a free place */
byte q_set[REQUESTS];
bit q_orphan[REQUESTS];   /* nobody waits for its answer any more */

/* --- what the properties speak about ------------------------------------------------------------------------------ */
byte epoch_of[RECORDS];   /* by record */
byte appended = 0;
byte kept = 0;            /* records that were acknowledged and, in CP, shown to consumers */
byte kept_in[RECORDS];    /* the epoch of the master that did so */
byte restarts = 0, losses = 0, resizes = 0;

byte i, j, held, point, before;  /* of one step, 0 between steps */

/* --- words -------------------------------------------------------------------------------------------------------- */
#define MAJORITY(m) (total[m] / 2 + 1)
#define HAS_QUORUM(m) (!IN(blind, m) && SIZE(confirmed[m]) >= MAJORITY(m))
#define BINDING_TOTAL MAX(c_total, c_next_total)
/* members that a set must have for its master to acknowledge; the smaller number of replicas counts */
#define LEAST(m) (IS_CP -> MIN(total[m], c_total) / 2 + 1 : 1)
#define ELECTABLE (c_set | c_eligible)

/* --- the rules, and what was or might be put in their place ------------------------------------------------------ */
#ifdef BUG_ACK_BY_CONFIRMED_SET
#define MUST_ACK(m) confirmed[m]
#else
#define MUST_ACK(m) in_force[m]
#endif

#ifdef BUG_MAJORITY_BEFORE_APPEND
#define MAY_COMMIT(m) true
#else
#define MAY_COMMIT(m) (!IS_CP || HAS_QUORUM(m))
#endif

#ifdef BUG_JOIN_AT_CONFIRM
#define BAR(m) confirm[m]
#else
#define BAR(m) MAX(confirm[m], inherited[m])
#endif

#ifdef BUG_SHRINK_AT_ONCE
#define IN_FORCE_WITH(m, members) ((members & confirmed[m]) == members -> members : in_force[m] | members)
#else
#define IN_FORCE_WITH(m, members) (in_force[m] | members)
#endif

#define ELIGIBLE_BESIDE(members) (SIZE(members) >= LEAST(c_master - 1) -> 0 : ELECTABLE & ~members)

#ifdef BUG_ELIGIBLE_FOR_EVER
#define ELIGIBLE_AFTER_ELECTION(w) (ELECTABLE & ~BIT(w))
#else
#define ELIGIBLE_AFTER_ELECTION(w) (LEAST(w) == 1 -> 0 : ELECTABLE & ~BIT(w))
#endif

#ifdef BUG_RESIZE_KEEPS_ELIGIBLE
#define ENOUGH_AS_IT_STANDS false
#else
#define ENOUGH_AS_IT_STANDS (IS_CP && c_master > 0 && SIZE(c_set) >= LEAST(c_master - 1))
#endif

#ifdef BUG_NUMBER_WITHOUT_SET
#define SHOWS_THE_SET false
#else
#define SHOWS_THE_SET true
#endif

#ifdef BUG_ELECTS_ANYBODY
#define MAY_LEAD(w) !IN(unclean, w)
#else
#define MAY_LEAD(w) (!IN(unclean, w) && IN(ELECTABLE, w))
#endif

#ifdef BUG_EPOCH_STAYS
#define NEXT_EPOCH (c_master == 0 -> c_epoch : c_epoch + 1)
#else
#define NEXT_EPOCH (c_epoch + 1)
#endif

#ifdef BUG_FOLLOWS_OLDER
#define IS_NEWS(r, e) (e != accepted[r])
#else
#define IS_NEWS(r, e) (e > accepted[r])
#endif

#ifdef BUG_RESTART_SETTLES_NOTHING
#define SETTLES_FIRST 0
#else
#define SETTLES_FIRST 1
#endif

#ifdef BUG_OLD_NOTICE_SETTLES
#define SHOWN_IS_NO_PROOF false
#else
#define SHOWN_IS_NO_PROOF true
#endif

#ifdef BUG_RESUMES_AFTER_POWER_LOSS
#define MAY_RESUME(r) true
#else
#define MAY_RESUME(r) !IN(unclean, r)
#endif

#ifdef BUG_NO_UNCLEAN_MARK
#define MARKED(r) 0
#else
#define MARKED(r) BIT(r)
#endif

#define HAS_ACKED(m, r, offset) ((r) == (m) || !IN(MUST_ACK(m), r) || ACKED(m, r) > (offset))
/* r may be in a set that m asks for: it is in the last one, or it holds what may have been acknowledged */
#define MAY_BE_IN(m, r) ((r) == (m) || IN(confirmed[m] & in_force[m], r) || ACKED(m, r) > BAR(m))

inline records_of(r, out) {
  out = 0;
  j = 0;
  do
  :: j < end[r] -> out = out | BIT(LOG(r, j)); j++
  :: else -> break
  od
}

/* what a new or a present master must hold */
inline must_hold_all(r) {
  records_of(r, held);
  j = 0;
  do
  :: j < RECORDS ->
     if
     :: IN(kept, j) && kept_in[j] < leads[r] && !IN(held, j) ->
        printf("VIOLATED: replica %d leads epoch %d without record %d, acknowledged or shown in epoch %d\n",
               r + 1, leads[r], j + 1, kept_in[j]);
        assert(false)
     :: else -> skip
     fi;
     j++
  :: else -> break
  od
}

inline keep(m, record) {
  if
  :: !IN(kept, record) -> kept = kept | BIT(record); kept_in[record] = leads[m]
  :: else -> skip
  fi;
  i = 0;
  do
  :: i < N -> if :: leads[i] > leads[m] -> must_hold_all(i) :: else -> skip fi; i++
  :: else -> break
  od
}

/* requests that a fence refuses from now on */
inline fence() {
  i = 0;
  do
  :: i < REQUESTS ->
     if
     :: q_from[i] > 0 -> q_from[i] = 0; q_set[i] = 0; q_orphan[i] = 0
     :: else -> skip
     fi;
     i++
  :: else -> break
  od
}

inline orphan(m) {
  i = 0;
  do
  :: i < REQUESTS -> if :: q_from[i] == m + 1 -> q_orphan[i] = 1 :: else -> skip fi; i++
  :: else -> break
  od
}

inline forget_mastership(m) {
  leads[m] = 0; confirmed[m] = 0; set_epoch[m] = 0; in_force[m] = 0; proposed[m] = 0; inherited[m] = 0;
  unknown = unknown & ~BIT(m);
  blind = blind & ~BIT(m);
  orphan(m);
  i = 0;
  do
  :: i < N ->
     ACKED(m, i) = 0;
     if :: follows[i] == m + 1 -> follows[i] = 0 :: else -> skip fi;
     i++
  :: else -> break
  od
}

/* the set is large enough for an acknowledgement: who is beside it may lack what comes */
inline end_eligibility() {
  if
  :: ENOUGH_AS_IT_STANDS -> c_eligible = 0
  :: else -> skip
  fi
}

/* --- sends -------------------------------------------------------------------------------------------------------- */
inline Append(m) {
  leads[m] > 0 && appended < RECORDS && (!IS_CP || (HAS_QUORUM(m) && confirm[m] >= inherited[m])) ->
  LOG(m, end[m]) = appended;
  end[m] = end[m] + 1;
  epoch_of[appended] = leads[m];
  appended++;
  printf("replica %d, master of epoch %d: appends record %d\n", m + 1, leads[m], appended)
}

/* The confirm offset passes one record, which consumers see and producers hear of. */
inline Commit(m) {
  leads[m] > 0 && confirm[m] < end[m] && MAY_COMMIT(m) &&
  HAS_ACKED(m, 0, confirm[m] + 1) && HAS_ACKED(m, 1, confirm[m] + 1) && HAS_ACKED(m, 2, confirm[m] + 1) ->
  confirm[m] = confirm[m] + 1;
  point = LOG(m, confirm[m] - 1);
#ifdef CP
  printf("replica %d: acknowledges and shows record %d, set %d in force\n", m + 1, point + 1, in_force[m]);
  if
  :: c_epoch == leads[m] ->
     i = 0;
     do
     :: i < N ->
        HOLDS("a member of the confirmed set ends below the confirm offset",
              !IN(c_set, i) || IN(unclean, i) || end[i] >= confirm[m]);
        i++
     :: else -> break
     od
  :: else -> skip
  fi;
  keep(m, point)
#endif
#ifdef AP
  /* What the whole set has is acknowledged by every rule of AP. The promise is for a master whose set is settled: one
     that goes on without an answer of the controllers says "unconfirmed set since". */
  if
  :: epoch_of[point] == leads[m] && !IN(unknown, m) ->
     printf("replica %d: acknowledges record %d, set %d in force\n", m + 1, point + 1, in_force[m]);
     keep(m, point)
  :: else -> skip
  fi
#endif
}

/* --- copying ------------------------------------------------------------------------------------------------------ */
/* The handshake: the slave cuts its log to where the epochs of both agree. */
inline Connect(m, r) {
  leads[m] > 0 && leads[r] == 0 && accepted[r] == leads[m] && follows[r] != m + 1 ->
  point = 0;
  do
  :: point < end[r] && point < end[m] && epoch_of[LOG(r, point)] == epoch_of[LOG(m, point)] -> point++
  :: else -> break
  od;
  HOLDS("a slave would have to cut what its consumers have seen", !IS_CP || point >= confirm[r]);
  i = point;
  do
  :: i < end[r] -> LOG(r, i) = 0; i++
  :: else -> break
  od;
  printf("replica %d: follows replica %d in epoch %d; its log ended at %d, now at %d\n",
         r + 1, m + 1, leads[m], end[r], point);
  end[r] = point;
  confirm[r] = MIN(confirm[r], point);
  follows[r] = m + 1;
  ACKED(m, r) = point + 1;
  if
  :: IN(unclean, r) && point >= end[m] -> unclean = unclean & ~BIT(r); goal[r] = 0
  :: IN(unclean, r) && point < end[m] -> goal[r] = end[m]
  :: else -> skip
  fi
}

inline Copy(r) {
  follows[r] > 0 && end[r] < end[follows[r] - 1] ->
  LOG(r, end[r]) = LOG(follows[r] - 1, end[r]);
  end[r] = end[r] + 1;
  printf("replica %d: copies record %d from replica %d\n", r + 1, LOG(r, end[r] - 1) + 1, follows[r]);
  if
  :: IN(unclean, r) && end[r] >= goal[r] ->
     unclean = unclean & ~BIT(r);
     goal[r] = 0;
     printf("replica %d: is whole again\n", r + 1)
  :: else -> skip
  fi
}

/* An acknowledgement arrives; the confirm offset comes back with the next transfer. */
inline Ack(r) {
  follows[r] > 0 && (ACKED(follows[r] - 1, r) != end[r] + 1 || confirm[r] < MIN(confirm[follows[r] - 1], end[r])) ->
  ACKED(follows[r] - 1, r) = end[r] + 1;
  confirm[r] = MAX(confirm[r], MIN(confirm[follows[r] - 1], end[r]));
  printf("replica %d: acknowledges %d to replica %d\n", r + 1, end[r], follows[r])
}

/* --- roles -------------------------------------------------------------------------------------------------------- */
inline begin_mastership(r, epoch, members, at) {
  leads[r] = epoch;
  confirmed[r] = members;
  in_force[r] = members;
  set_epoch[r] = at;
  inherited[r] = end[r];
  total[r] = BINDING_TOTAL;
#ifndef CP
  confirm[r] = end[r];
#endif
#ifdef BUG_CONFIRM_AT_ONCE
  do
  :: confirm[r] < end[r] -> confirm[r] = confirm[r] + 1; point = LOG(r, confirm[r] - 1); keep(r, point)
  :: else -> break
  od;
#endif
  i = 0;
  do
  :: i < N ->
     HOLDS("two masters lead one epoch", i == r || leads[i] != epoch);
     i++
  :: else -> break
  od;
  must_hold_all(r)
}

/* A replica hears of an election, perhaps late: by a notice (1008), a heartbeat's answer or a question (1005). */
inline Learn(r, e) {
  e <= c_epoch && IS_NEWS(r, e) && !(winner[e] == r + 1 && IN(unclean, r)) ->
  before = accepted[r];
  forget_mastership(r);
  follows[r] = 0;
  goal[r] = 0;
  accepted[r] = e;
  HOLDS("a replica accepts an older master", accepted[r] >= before);
  if
  :: winner[e] == r + 1 ->
     printf("replica %d: leads epoch %d with a log up to %d\n", r + 1, e, end[r]);
     begin_mastership(r, e, BIT(r), won_at[e])
  :: else ->
     printf("replica %d: hears that replica %d leads epoch %d\n", r + 1, winner[e], e)
  fi
}

/* A master that was restarted goes on in its epoch: as the controllers answer it, */
inline Resume(r) {
  leads[r] == 0 && c_master == r + 1 && c_epoch == accepted[r] && MAY_RESUME(r) ->
  printf("replica %d: leads epoch %d again, set %d\n", r + 1, c_epoch, c_set);
  begin_mastership(r, c_epoch, c_set, c_set_epoch);
  unknown = unknown | (SETTLES_FIRST << r);
  blind = blind | (SETTLES_FIRST << r);
  unclean = unclean & ~BIT(r)
}

/* or by the notice of its election, which comes once more, late. */
inline ResumeLate(r) {
  leads[r] == 0 && accepted[r] > 0 && winner[accepted[r]] == r + 1 && !IN(unclean, r) ->
  printf("replica %d: leads epoch %d again, by an old notice\n", r + 1, accepted[r]);
  begin_mastership(r, accepted[r], BIT(r), won_at[accepted[r]]);
  unknown = unknown | (SETTLES_FIRST << r);
  blind = blind | (SETTLES_FIRST << r)
}

/* --- the set ------------------------------------------------------------------------------------------------------ */
inline Propose(m, members) {
  leads[m] > 0 && c_set_epoch < SETS && proposed[m] == 0 && IN(members, m) && q_from[REQUESTS - 1] == 0 &&
  (members != confirmed[m] || IN(unknown, m)) &&
  (!IN(members, 0) || MAY_BE_IN(m, 0)) &&
  (!IN(members, 1) || MAY_BE_IN(m, 1)) &&
  (!IN(members, 2) || MAY_BE_IN(m, 2)) ->
  proposed[m] = members;
  in_force[m] = IN_FORCE_WITH(m, members);
#ifndef CP
  if
  :: IN(unknown, m) && members == confirmed[m] -> in_force[m] = members
  :: else -> skip
  fi;
#endif
  printf("replica %d: asks for the set %d from set epoch %d\n", m + 1, members, set_epoch[m]);
  if
  :: c_master != m + 1 || c_epoch != leads[m] || c_set_epoch != set_epoch[m] -> skip /* a fence will refuse it */
  :: else ->
     i = (q_from[0] == 0 -> 0 : 1);
     q_from[i] = m + 1;
     q_set[i] = members
  fi
}

inline take_set(m) {
  confirmed[m] = c_set;
  in_force[m] = c_set;
  set_epoch[m] = c_set_epoch;
  proposed[m] = 0
}

/* The controllers take a request. */
inline alter(members) {
  c_eligible = ELIGIBLE_BESIDE(members);
  c_set = members;
  c_set_epoch++;
  end_eligibility()
}

inline check_members() {
  i = 0;
  do
  :: i < N ->
     HOLDS("a member of the confirmed set ends below the confirm offset",
           !IS_CP || !IN(c_set, i) || IN(unclean, i) || leads[c_master - 1] != c_epoch
           || end[i] >= confirm[c_master - 1]);
     i++
  :: else -> break
  od
}

/* Its master hears of it later, by Shown, or never. */
inline Deliver(q) {
  q_from[q] > 0 ->
  printf("controllers: the set is %d at set epoch %d, as replica %d asked\n", q_set[q], c_set_epoch + 1, q_from[q]);
  alter(q_set[q]);
  fence();
  check_members()
}

/* Its master hears of it: no request that it sent before, in this life or a former one, passes the fence any more. */
inline DeliverAndAnswer(q) {
  q_from[q] > 0 && q_orphan[q] == 0 ->
  printf("controllers: the set is %d at set epoch %d, as replica %d asked, and it hears so\n",
         q_set[q], c_set_epoch + 1, q_from[q]);
  alter(q_set[q]);
  fence();
  take_set(c_master - 1);
  unknown = unknown & ~BIT(c_master - 1);
  blind = blind & ~BIT(c_master - 1);
  check_members()
}

/* Refused after all fences have let it through: a member is not alive, as they see it. Its master may hear of it. */
inline Refuse(q) {
  q_from[q] > 0 && q_orphan[q] == 0 ->
  printf("controllers: refuse the set %d of replica %d\n", q_set[q], q_from[q]);
  proposed[q_from[q] - 1] = 0;
  if
  :: !IN(unknown, q_from[q] - 1) -> in_force[q_from[q] - 1] = confirmed[q_from[q] - 1]
  :: else -> skip
  fi;
  q_from[q] = 0; q_set[q] = 0
}

inline Lose(q) {
  q_from[q] > 0 && q_orphan[q] == 1 ->
  printf("a request for the set %d is lost\n", q_set[q]);
  q_from[q] = 0; q_set[q] = 0; q_orphan[q] = 0
}

/* No answer came. The request may yet arrive. */
inline TimeOut(m) {
  proposed[m] > 0 ->
  printf("replica %d: has no answer to its request for the set %d\n", m + 1, proposed[m]);
#ifndef CP
  in_force[m] = ((proposed[m] & confirmed[m]) == proposed[m] -> proposed[m] : in_force[m]);
#endif
  unknown = unknown | BIT(m);
  proposed[m] = 0;
  orphan(m)
}

/* Any other answer shows the controllers' set. It says nothing of requests of a former life: what this master knew
   since its restart may have been old news. */
inline be_shown(m) {
  take_set(m);
  orphan(m);
  if
  :: !IN(blind, m) || !SHOWN_IS_NO_PROOF -> unknown = unknown & ~BIT(m); blind = blind & ~BIT(m)
  :: else -> skip
  fi
}

inline Shown(m) {
  leads[m] > 0 && c_master == m + 1 && c_epoch == leads[m] && c_set_epoch > set_epoch[m] ->
  printf("replica %d: is shown the set %d at set epoch %d\n", m + 1, c_set, c_set_epoch);
  be_shown(m)
}

/* --- elections ---------------------------------------------------------------------------------------------------- */
/* Silence may make anybody the only one that answers, so no ranking is modelled: it only ever narrows the choice. */
inline Elect(w) {
  c_epoch < EPOCHS && c_set_epoch < SETS && MAY_LEAD(w) ->
  HOLDS("one is elected who is neither in the set nor eligible", IN(ELECTABLE, w));
  c_epoch = NEXT_EPOCH;
  printf("controllers: elect replica %d in epoch %d; the set was %d, eligible %d\n", w + 1, c_epoch, c_set, c_eligible);
  c_eligible = ELIGIBLE_AFTER_ELECTION(w);
  c_master = w + 1;
  c_set = BIT(w);
  c_set_epoch++;
  winner[c_epoch] = w + 1;
  won_at[c_epoch] = c_set_epoch;
  fence();
  end_eligibility()
}

/* --- faults ------------------------------------------------------------------------------------------------------- */
/* What is on disk stays; the confirm offset there may be of any age, and the oldest is the worst. */
inline stop_and_start(r) {
  forget_mastership(r);
  follows[r] = 0;
  goal[r] = 0;
  confirm[r] = 0;
  i = 0
}

inline Restart(r) {
  restarts < RESTARTS ->
  restarts++;
  printf("replica %d: is killed and started again\n", r + 1);
  stop_and_start(r)
}

/* ASYNC_FLUSH: the log is cut to `left`. One replica at a time: a majority keeps power. */
inline PowerLoss(r, left) {
  losses < LOSSES && unclean == 0 && left < end[r] ->
  losses++;
  printf("replica %d: loses power and the log behind %d\n", r + 1, left);
  stop_and_start(r);
  i = left;
  do
  :: i < end[r] -> LOG(r, i) = 0; i++
  :: else -> break
  od;
  end[r] = left;
  unclean = MARKED(r);
  if
  :: IS_CP ->
     held = 0;
     i = 0;
     do
     :: i < N ->
        records_of(i, point);
        held = held | point;
        i++
     :: else -> break
     od;
     HOLDS("the last copy of what was acknowledged is lost with one replica's power", (kept & ~held) == 0)
  :: else -> skip
  fi
}

/* After an unclean boot the controllers take the replica out of everything first. */
inline RegisterUnclean(r) {
  IN(unclean, r) && IN(ELECTABLE, r) && c_set_epoch < SETS ->
  printf("controllers: replica %d is out of the set, it lost power\n", r + 1);
  if
  :: IN(c_set, r) -> c_set = c_set & ~BIT(r); c_set_epoch++; fence()
  :: else -> skip
  fi;
  c_eligible = c_eligible & ~BIT(r);
  if :: c_master == r + 1 -> c_master = 0 :: else -> skip fi
}

/* --- totalReplicas ------------------------------------------------------------------------------------------------ */
/* A larger number is the group's some time after it counts for the master's majority, a smaller one at once. */
inline Resize() {
  resizes < RESIZES && c_next_total == 0 ->
  resizes++;
  if
  :: c_total == 3 -> c_next_total = 5
  :: else -> c_total = 3
  fi;
  printf("an operator: totalReplicas changes; it is %d, next %d\n", c_total, c_next_total);
  end_eligibility()
}

/* The same answer shows the set. */
inline HearTotal(m) {
  leads[m] > 0 && c_master == m + 1 && c_epoch == leads[m] && total[m] != BINDING_TOTAL ->
  total[m] = BINDING_TOTAL;
  printf("replica %d: goes by totalReplicas = %d\n", m + 1, total[m]);
  if
  :: SHOWS_THE_SET && c_set_epoch > set_epoch[m] -> be_shown(m)
  :: else -> skip
  fi
}

/* The code waits for a master that is alive, as the controllers see it: its silence allows this at any time. */
inline Resized() {
  c_next_total > 0 ->
  c_total = c_next_total;
  c_next_total = 0;
  printf("controllers: totalReplicas = %d\n", c_total);
  end_eligibility()
}

/* --- any of it, for ever ------------------------------------------------------------------------------------------ */
#define STEP(action) d_step { action; i = 0; j = 0; held = 0; point = 0; before = 0 }
#define EACH(Action) :: STEP(Action(0)) :: STEP(Action(1)) :: STEP(Action(2))
#define EACH_PAIR(Action) \
  :: STEP(Action(0, 1)) :: STEP(Action(0, 2)) :: STEP(Action(1, 0)) \
  :: STEP(Action(1, 2)) :: STEP(Action(2, 0)) :: STEP(Action(2, 1))
#define EACH_WITH(Action, x) :: STEP(Action(0, x)) :: STEP(Action(1, x)) :: STEP(Action(2, x))

init {
  d_step {
    /* The first election is over, replica 1 leads, and all are in its set. */
    winner[1] = 1;
    won_at[1] = 0;
    i = 0;
    do
    :: i < N -> total[i] = TOTAL; accepted[i] = 1; i++
    :: else -> break
    od;
    leads[0] = 1; confirmed[0] = ALL; in_force[0] = ALL; set_epoch[0] = 1;
    follows[1] = 1; follows[2] = 1; ACKED(0, 1) = 1; ACKED(0, 2) = 1;
    i = 0
  };
  do
  EACH(Append)
  EACH(Commit)
  EACH_PAIR(Connect)
  EACH(Copy)
  EACH(Ack)
#ifdef BUG_FOLLOWS_OLDER
  EACH_WITH(Learn, 1)
#endif
  EACH_WITH(Learn, 2)
#if EPOCHS > 2
  EACH_WITH(Learn, 3)
#endif
#if EPOCHS > 3
  EACH_WITH(Learn, 4)
#endif
  EACH(Resume)
  EACH(ResumeLate)
  :: STEP(Propose(0, 1)) :: STEP(Propose(0, 3)) :: STEP(Propose(0, 5)) :: STEP(Propose(0, 7))
  :: STEP(Propose(1, 2)) :: STEP(Propose(1, 3)) :: STEP(Propose(1, 6)) :: STEP(Propose(1, 7))
  :: STEP(Propose(2, 4)) :: STEP(Propose(2, 5)) :: STEP(Propose(2, 6)) :: STEP(Propose(2, 7))
  :: STEP(Deliver(0)) :: STEP(Deliver(1))
  :: STEP(DeliverAndAnswer(0)) :: STEP(DeliverAndAnswer(1))
  :: STEP(Refuse(0)) :: STEP(Refuse(1))
  :: STEP(Lose(0)) :: STEP(Lose(1))
  EACH(TimeOut)
  EACH(Shown)
  EACH(Elect)
  EACH(Restart)
  EACH_WITH(PowerLoss, 0)
#if RECORDS > 1
  EACH_WITH(PowerLoss, 1)
#endif
#if RECORDS > 2
  EACH_WITH(PowerLoss, 2)
#endif
  EACH(RegisterUnclean)
#if RESIZES > 0
  :: STEP(Resize())
  EACH(HearTotal)
  :: STEP(Resized())
#endif
  od
}
