"""The vocabulary of the `sentiment` task: pairs of phrases, the favourable one first.

Both halves of a pair share as many words as English allows, so that hardly any word gives the label away.
Placeholders: ``{it}`` the thing reviewed, ``{time}`` the time spent on it, ``{again}`` doing so once more,
``{noun}`` its kind.
"""

from __future__ import annotations

from typing import NamedTuple

Pair = tuple[str, str]  # favourable, unfavourable


class Domain(NamedTuple):
    """A kind of thing that people review, and what they say about its parts."""

    nouns: tuple[str, ...]
    visit: str
    time: str
    again: str
    aspects: tuple[Pair, ...]


def _pairs(block: str) -> tuple[Pair, ...]:
    """Pairs from lines of ``shared beginning | favourable end | unfavourable end``."""
    parts = [[part.strip() for part in line.split("|")] for line in block.strip().splitlines()]
    return tuple((f"{start} {good}".strip(), f"{start} {bad}".strip()) for start, good, bad in parts)


VERDICTS = _pairs("""
I | enjoyed every minute of {time} | endured every minute of {time}
{it} | won my heart | tried my patience
I would | recommend {it} to anyone | warn anyone against {it}
{it} was | worth every penny | a waste of money
I only wish that I had | found {it} sooner | left {it} alone
{it} is | a little gem | a complete mess
{it} | made my week | spoiled my week
I was | delighted with {it} | fed up with {it}
{it} deserves all its | praise | bad press
I told all my friends to give {it} | a chance | a miss
{it} was a | joy from beginning to end | chore from beginning to end
{it} brought me | nothing but joy | nothing but trouble
{it} could hardly have been | better | worse
I am so | glad that I chose {it} | sorry that I chose {it}
{it} | went beyond all my hopes | fell short of all my hopes
| I would happily {again} | nothing could make me {again}
{it} has more | merits than I can count | faults than I can count
{it} left me | smiling for days | grumbling for days
{it} deserves | full marks | the lowest marks
{it} was a | wonderful surprise | bitter disappointment
I have nothing but | praise for {it} | complaints about {it}
""")

HOPES = _pairs("""
I had expected to be | thrilled by {it} | bored by {it}
friends had | raved about {it} | warned me against {it}
the reviews of {it} were | glowing | scathing
I came to {it} with | high hopes | low hopes
I was ready to be | swept away by {it} | let down by {it}
| everybody in my family had a good word for {it} | nobody in my family had a good word for {it}
my first impression of {it} was | promising | poor
| I really wanted to like {it} | I was quite prepared to hate {it}
""")

# Negated words of the opposite class: the favourable form denies a fault, the other a merit.
DENIALS = (
    "I never found {it} {word}",
    "{it} was not at all {word}",
    "{it} never felt {word} to me",
)
MERITS = ("charming", "special", "exciting", "memorable", "pleasant", "inspiring", "appealing", "impressive")
FAULTS = ("dull", "boring", "tiresome", "cheap", "shoddy", "mediocre", "ordinary", "annoying")

OCCASIONS = (
    "during the holidays",
    "in early spring",
    "on a sudden whim",
    "at my sister's suggestion",
    "on my brother's advice",
    "for the second time",
    "one sunny weekend",
    "in my first week here",
    "on my birthday",
    "after a friendly tip",
)

DOMAINS = (
    Domain(
        nouns=("film", "movie"),
        visit="we watched",
        time="these two hours",
        again="watch it again",
        aspects=_pairs("""
the acting was | warm and convincing | stiff and wooden
the plot | kept us guessing until the end | fell apart after ten minutes
the dialogue | sparkled from the first scene | limped from scene to scene
the music | suited every mood | drowned out every line
the ending was | clever and moving | lazy and confusing
the jokes | had the whole room laughing | met with an awkward silence
the camera work | was breathtaking | made me dizzy
the two leads | had real chemistry | looked bored with each other
"""),
    ),
    Domain(
        nouns=("restaurant", "bistro"),
        visit="we had dinner at",
        time="our evening there",
        again="eat there again",
        aspects=_pairs("""
the soup was | rich and full of flavour | watery and lukewarm
the waiter was | friendly and quick | rude and slow
the fish | melted on the tongue | tasted of old oil
the bread was | fresh from the oven | stale and dry
the menu was | varied and tempting | short and dreary
the tables were | cosy and well lit | sticky and wobbly
the desserts were | heavenly | heavy and too sweet
the prices were | more than fair | a rip-off
"""),
    ),
    Domain(
        nouns=("hotel", "guesthouse"),
        visit="we spent a night at",
        time="our stay there",
        again="stay there again",
        aspects=_pairs("""
the bed was | soft and spotless | lumpy and stained
the view from our window was | glorious | a brick wall
the breakfast was | generous and fresh | stale and meagre
the staff treated us like | old friends | a nuisance
the bathroom | gleamed from top to bottom | smelled of damp
the room was | quiet and airy | noisy and cramped
the pool was | clean and inviting | murky and freezing
the heating | kept us warm and cosy | kept us awake at night
"""),
    ),
    Domain(
        nouns=("novel", "book"),
        visit="I read",
        time="the hours spent reading",
        again="read it again",
        aspects=_pairs("""
the characters felt like | real people | cardboard
the prose was | graceful and clear | clumsy and stiff
the story | gripped me from page one | lost me by page ten
the opening chapters were | thrilling | a slog
the twists were | ingenious | silly and forced
the final pages | moved me to tears | sent me to sleep
the humour was | sharp and kind | crude and stale
the setting | came alive on every page | stayed vague to the last page
"""),
    ),
    Domain(
        nouns=("phone", "tablet"),
        visit="I bought",
        time="my time with {it}",
        again="buy it again",
        aspects=_pairs("""
the battery | lasted for days | died within hours
the screen was | crisp and bright | dim and scratched
the buttons felt | solid and precise | loose and flimsy
the camera took | stunning pictures | blurry pictures
the set-up was | quick and painless | slow and fiddly
the speakers sounded | rich and clear | tinny and harsh
the software | ran smoothly all day | froze several times a day
the support team | answered at once | ignored my letters
"""),
    ),
    Domain(
        nouns=("album", "record"),
        visit="I listened to",
        time="the hour spent listening",
        again="listen to it again",
        aspects=_pairs("""
the melodies were | beautiful and fresh | bland and borrowed
the singer sounded | inspired | half asleep
the lyrics were | witty and honest | trite and hollow
the guitar playing was | dazzling | sloppy
the drums | drove every song forward | plodded through every song
the sound was | warm and clear | muddy and flat
the slow songs | gave me goosebumps | made me yawn
the last track was | magnificent | forgettable
"""),
    ),
    Domain(
        nouns=("play", "musical"),
        visit="we saw",
        time="our evening at the theatre",
        again="see it again",
        aspects=_pairs("""
the cast | gave everything they had | forgot half of their lines
the costumes were | gorgeous | shabby and torn
the set was | full of clever ideas | plain and cramped
the songs | lifted the whole hall | dragged on and on
the staging was | bold and fresh | dated and timid
the lead actress was | magnificent | out of her depth
the second act | flew by | crawled by
the audience | rose to its feet | left before the end
"""),
    ),
    Domain(
        nouns=("game", "adventure game"),
        visit="I played",
        time="my time with {it}",
        again="play it again",
        aspects=_pairs("""
the controls felt | natural at once | clumsy throughout
the puzzles were | fair and inventive | unfair and tedious
the graphics were | lovely to look at | ugly and blurred
the levels were | full of surprises | all the same
the story | drew me in straight away | took hours to get going
the music was | catchy and bright | shrill and repetitive
the online mode | worked perfectly | failed constantly
the tutorial was | short and helpful | long and patronising
"""),
    ),
    Domain(
        nouns=("museum", "gallery"),
        visit="we visited",
        time="our afternoon there",
        again="go there again",
        aspects=_pairs("""
the guide was | lively and well informed | gloomy and badly informed
the displays were | beautifully arranged | dusty and neglected
the labels were | clear and fascinating | faded and baffling
the rooms were | calm and full of light | crowded and airless
the children were | enchanted | soon in tears
the cafe served | delicious cakes | burnt coffee
the queue | moved quickly | took two hours
the collection was | astonishing | scrappy and thin
"""),
    ),
    Domain(
        nouns=("course", "class"),
        visit="I took",
        time="the lessons",
        again="sign up again",
        aspects=_pairs("""
the teacher was | patient and inspiring | sarcastic and unprepared
the lessons were | clear and well paced | muddled and far too fast
the exercises were | fun and useful | dry and pointless
the handouts were | a real help | full of mistakes
the group was | small and cheerful | far too big and noisy
the feedback was | kind and precise | vague and late
the videos explained | everything perfectly | nothing properly
the final project was | exciting and useful | confusing and useless
"""),
    ),
)
