"""Write visits.csv, 6,000 made-up visits of about 3,500 patients to a hospital, for the pages and tutorials of the book."""

import numpy as np
import pandas as pd

random = np.random.default_rng(0)
n = 6000
patient = np.sort(random.integers(0, 4000, n))
ages = np.clip(random.normal(52, 22, 4000), 0, 104).astype(int)
age = ages[patient]
department = np.where(
    age < 16,
    random.choice(["paediatrics", "emergency"], n, p=[0.7, 0.3]),
    random.choice(["cardiology", "emergency", "orthopaedics", "surgery"], n, p=[0.2, 0.4, 0.25, 0.15]),
)
admitted = pd.Timestamp("2023-01-01") + pd.to_timedelta(random.integers(0, 1000, n), unit="D")
nights = random.poisson(1 + age / 25 + 3 * (department == "surgery"))
readmitted = random.random(n) < 1 / (1 + np.exp(3.5 - age / 30 - nights / 5))
pd.DataFrame(
    {
        "patient": [f"P{number:05}" for number in patient],
        "age": age,
        "department": department,
        "admitted": admitted.strftime("%Y-%m-%d"),
        "discharged": (admitted + pd.to_timedelta(nights, unit="D")).strftime("%Y-%m-%d"),
        "cost": np.round(400 + 650 * nights * random.lognormal(0, 0.3, n), 2),
        "readmitted": np.where(readmitted, "yes", "no"),
    }
).to_csv("visits.csv", index=False)
